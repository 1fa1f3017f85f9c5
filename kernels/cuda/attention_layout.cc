#include "kernels/cuda/attention_layout.h"

#include <algorithm>
#include <bit>

#include "kernels/base/check.h"
#include "kernels/cuda/attention_cost.h"

namespace lockstep::cuda {

// One batch on its way into lists.
class AttentionWork::Cutter {
 public:
  Cutter(const AttentionBatch& batch, const AttentionHeads& heads, DType kv_dtype,
         const AttentionMachine& machine)
      : batch_(batch),
        heads_(heads),
        machine_(machine),
        group_(heads.num_heads / heads.num_kv_heads) {
    const int64_t most_tokens = batch.MaxQueryLen();
    form_.decode = most_tokens <= 1 && !machine.decodes_as_chunks;
    form_.tile_rows = TileRows(kv_dtype, form_.decode);
    turn_ = BlocksOfATurn(machine, form_.decode);
    for (int64_t seq = 0; seq < num_seqs(); ++seq) {
      if (ContextTiles(seq) <= longest_) continue;
      longest_ = ContextTiles(seq);
      shortest_ = std::max<int64_t>(longest_ - (NumTokens(seq) - 1) / kAttentionTile, 1);
    }
  }

  // All that does not depend on what is written.
  AttentionForm Shape() {
    if (!is_fixed()) {
      ShapeFree();
    } else if (batch_.cut == AttentionCut::kOnce || by_wgmma()) {
      ShapeFixedOnce();
    } else {
      ShapeFixed();
    }
    return form_;
  }
  int64_t split_tiles() const { return split_tiles_; }

  void Write(AttentionItem* memory) const {
    int launch = -1;
    AttentionHeader* header = nullptr;
    AttentionItem* items = nullptr;
    AttentionItem* merges = nullptr;
    int32_t slot = 0;
    const auto split_tokens = static_cast<int32_t>(split_tiles_ * kAttentionTile);
    const auto item_tokens = static_cast<int32_t>(item_tiles_ * kAttentionTile);
    const int64_t stride = form_.LaunchBytes() / int64_t{sizeof(AttentionItem)};
    const auto begin_launch = [&] {
      LS_CHECK(launch + 1 < form_.launches) << form_.launches << " launches";
      header = reinterpret_cast<AttentionHeader*>(memory + ++launch * stride);
      *header = {.split_tokens = split_tokens};
      items = memory + launch * stride + 1;
      merges = items + form_.items;
      slot = 0;
    };
    begin_launch();
    ForEachTile([&](const AttentionItem& tile, bool begins_launch) {
      if (begins_launch) begin_launch();
      AttentionItem item = tile;
      const int32_t splits = DivideUp(tile.end, split_tokens);
      if (splits > 1) {
        item.slot = slot;
        item.first = split_tokens;
        merges[header->num_merges++] = item;
      }
      for (int32_t first = 0; first < tile.end; first += item_tokens) {
        item.first = first;
        item.end = std::min(tile.end, first + item_tokens);
        if (splits > 1) item.slot = slot + first / split_tokens * Rows(tile);
        LS_CHECK(header->num_items < form_.items) << form_.items << " blocks";
        items[header->num_items++] = item;
      }
      if (splits > 1) slot += splits * Rows(tile);
    });
    while (launch + 1 < form_.launches) begin_launch();
  }

 private:
  // One block walks one split by that.
  bool by_wgmma() const { return machine_.wgmma && !form_.decode; }
  bool is_fixed() const { return machine_.fixed_splits || machine_.split_tokens > 0; }
  int64_t num_seqs() const { return std::ssize(batch_.context_lens); }
  int32_t NumTokens(int64_t seq) const {
    return batch_.query_starts[static_cast<size_t>(seq + 1)] -
           batch_.query_starts[static_cast<size_t>(seq)];
  }
  // Of context, 0 for sequences without work.
  int32_t ContextTiles(int64_t seq) const {
    const int32_t context = batch_.context_lens[static_cast<size_t>(seq)];
    return NumTokens(seq) == 0 ? 0 : DivideUp(context, static_cast<int32_t>(kAttentionTile));
  }
  // Of rows.
  int32_t RowTiles(int64_t seq) const { return DivideUp(NumTokens(seq) * group_, form_.tile_rows); }
  int64_t MostRowTiles() const {
    if (form_.decode) return num_seqs() * DivideUp(group_, form_.tile_rows);
    return int64_t{batch_.query_starts.back()} * group_ / form_.tile_rows + num_seqs();
  }
  // Of partial results.
  int64_t MostRows() const { return AttentionPartialRows(heads_, machine_.workspace_bytes); }
  int32_t Rows(const AttentionItem& tile) const {
    return std::min(form_.tile_rows, tile.num_rows - tile.first_row);
  }

  // The last come first, as they have the longest context. visit(an item with `end` and no split,
  // whether it belongs to another launch than the one before)
  template <typename Visit>
  void ForEachTile(const Visit& visit) const {
    int64_t rows = 0;
    int64_t items = 0;
    for (int64_t seq = num_seqs() - 1; seq >= 0; --seq) {
      const int32_t context =
          ContextTiles(seq) == 0 ? 0 : batch_.context_lens[static_cast<size_t>(seq)];
      if (context == 0) continue;
      AttentionItem item;
      item.table = static_cast<int32_t>(batch_.table_rows[static_cast<size_t>(seq)] *
                                        batch_.max_blocks_per_seq);
      item.first_token = batch_.query_starts[static_cast<size_t>(seq)];
      item.first_position = context - NumTokens(seq);
      item.num_rows = NumTokens(seq) * group_;
      for (int32_t tile = RowTiles(seq) - 1; tile >= 0; --tile) {
        item.first_row = tile * form_.tile_rows;
        const int32_t last_row = std::min(item.first_row + form_.tile_rows, item.num_rows) - 1;
        item.end = item.first_position + last_row / group_ + 1;
        const int64_t splits = DivideUp<int64_t>(item.end, split_tiles_ * kAttentionTile);
        const int64_t taken = splits > 1 ? splits * Rows(item) : 0;
        const bool is_full =
            items > 0 && (rows + taken > rows_to_launch_ || items + splits > items_to_launch_);
        if (is_full) rows = items = 0;
        rows += taken;
        items += splits;
        visit(item, is_full);
      }
    }
  }

  // ---- as is best ----

  // Blocks beyond one to each tile.
  int64_t MostSpareBlocks(int64_t tiles) const {
    const bool are_many = tiles * heads_.num_kv_heads > turn_;
    const bool are_exact = batch_.cut == AttentionCut::kOnce;  // none ends at once
    const int64_t turns = are_exact || (form_.decode && are_many) ? kSpareTurnsOfMany : kSpareTurns;
    return SpareBlocks(turns, are_exact ? BlocksOfATurn(machine_, true) : turn_, heads_);
  }

  // Of the lengths that need no more blocks than are launched, the one with which they end first.
  void ShapeFree() {
    const int64_t tiles = MostRowTiles();
    const bool are_many = tiles * heads_.num_kv_heads > turn_;
    const int64_t spare = MostSpareBlocks(tiles);
    most_splits_ = spare;
    item_tiles_ = split_tiles_ = BestLength(tiles + spare);
    const bool is_split = split_tiles_ < longest_;
    const AttentionCut cut = batch_.cut;
    const bool has_tile_kernel =
        form_.decode && !are_many && form_.tile_rows == kAttentionDecodeRows;
    form_.one_tile =
        has_tile_kernel && (cut == AttentionCut::kTiles || (is_split && split_tiles_ == 1));
    if (cut == AttentionCut::kOnce) return ShapeAsLists();
    form_.items = static_cast<int>(tiles);
    if (!is_split && cut != AttentionCut::kTiles && cut != AttentionCut::kSplits) return;
    form_.items += static_cast<int>(spare);
    form_.merges = static_cast<int>(std::min(tiles, spare));
  }

  // Whole contexts are in as many splits as there is room for, if all are as long as each other.
  int64_t BestLength(int64_t most_items) const {
    constexpr int64_t kMostSplits = 256;  // tried of the longest
    constexpr int64_t kShortest = 8;      // lengths from there down are tried all
    const int64_t whole = std::max<int64_t>(longest_, 1);
    int64_t best = whole;
    double least = Cost().Of(TotalsOf(whole, whole), whole);
    // False: there is no room for splits that short.
    const auto try_length = [&](int64_t length) {
      const CutTotals totals = TotalsOf(length, length);
      if (totals.items > most_items || totals.partial_rows > MostRows() ||
          totals.merges > most_splits_) {
        return false;
      }
      const double cost = Cost().Of(totals, length);
      if (cost >= kWorthwhile * least) return true;
      least = cost;
      best = length;
      return true;
    };
    int64_t splits = 2;
    while (splits <= kMostSplits && DivideUp(whole, splits) > kShortest) {
      if (!try_length(DivideUp(whole, splits))) return best;
      splits += std::max<int64_t>(splits / 8, 1);
    }
    for (int64_t length = std::min(kShortest, whole - 1); length > 0; --length) {
      if (!try_length(length)) break;
    }
    return best;
  }

  // Of items and splits of such lengths, in tiles of context.
  CutTotals TotalsOf(int64_t item_length, int64_t split_length) const {
    CutTotals totals;
    for (int64_t seq = 0; seq < num_seqs(); ++seq) {
      const int64_t context = ContextTiles(seq);
      if (context == 0) continue;
      const int64_t tiles = RowTiles(seq);
      const int64_t splits = DivideUp(context, split_length);
      totals.items += tiles * DivideUp(context, item_length);
      if (splits > 1) {
        totals.splits += tiles * splits;
        totals.partial_rows += int64_t{NumTokens(seq)} * group_ * splits;
        totals.merges += tiles;
      }
      const double unseen = 0.5 * NumTokens(seq) / static_cast<double>(kAttentionTile);
      totals.walked += static_cast<double>(tiles) * (static_cast<double>(context) - unseen);
    }
    return totals;
  }
  CutCost Cost() const {
    return {.overheads = form_.decode     ? kDecodeOverheads
                         : machine_.wgmma ? kWgmmaOverheads
                                          : kChunkOverheads,
            .kv_heads = heads_.num_kv_heads,
            .turn = turn_,
            .longest = longest_,
            .shortest = shortest_};
  }

  // ---- of fixed lengths ----

  // A row's result is the same in a tile of any size, and so is it whoever walks its splits.
  // `most_tiles`: of a context.
  void BeginFixed(int64_t most_tiles) {
    split_tiles_ =
        machine_.split_tokens > 0 ? machine_.split_tokens / kAttentionTile : kFixedSplitTiles;
    item_tiles_ = split_tiles_;
    const int64_t splits = DivideUp(most_tiles, split_tiles_);
    if (splits <= 1) return;
    // Two tiles have room, so that launches are full.
    if (2 * splits * form_.tile_rows > MostRows()) {
      form_.tile_rows = std::min(form_.tile_rows, kAttentionDecodeRows);
    }
    LS_CHECK(splits * form_.PartialRows(heads_) <= MostRows())
        << machine_.workspace_bytes << " bytes are not enough for a tile's " << splits << " splits";
  }

  // Of a step that repeats: form and number of launches are those of the longest contexts there
  // may be, whose splits, each with its partial results, blocks walk one after the other.
  void ShapeFixed() {
    const int64_t split_tiles =
        machine_.split_tokens > 0 ? machine_.split_tokens / kAttentionTile : kFixedSplitTiles;
    const bool is_split = longest_ > split_tiles || batch_.cut == AttentionCut::kTiles ||
                          batch_.cut == AttentionCut::kSplits;
    const int64_t most_tiles =
        is_split ? std::max(longest_, DivideUp(batch_.max_context_len, kAttentionTile)) : longest_;
    BeginFixed(most_tiles);
    const int64_t tiles = MostRowTiles();
    form_.items = static_cast<int>(tiles);
    if (!is_split) return;
    const int64_t spare = MostSpareBlocks(tiles);
    item_tiles_ = BestItems(tiles + spare);
    form_.several_splits = true;
    form_.items += static_cast<int>(spare);
    form_.merges = static_cast<int>(tiles);
    form_.launches = static_cast<int>(MostLaunches(tiles, DivideUp(most_tiles, split_tiles_)));
    rows_to_launch_ = MostRows();
  }

  // Of one tile after the other as long as there is room: two launches together have more than
  // there is room for, and one of them all but a tile's.
  int64_t MostLaunches(int64_t tiles, int64_t most_splits) const {
    const int64_t room = MostRows();
    const int64_t rows = int64_t{batch_.query_starts.back()} * group_ * most_splits;
    if (rows <= room) return 1;
    const int64_t of_a_tile = form_.PartialRows(heads_) * most_splits;
    return std::min({tiles, 2 * rows / room + 1, rows / (room - of_a_tile + 1) + 1});
  }

  // Splits that a block walks, in tiles of context.
  int64_t BestItems(int64_t most_items) const {
    const int64_t splits = std::max<int64_t>(DivideUp(longest_, split_tiles_), 1);
    int64_t best = splits * split_tiles_;
    double least = Cost().Of(TotalsOf(best, split_tiles_), best);
    for (int64_t blocks = 2; blocks <= splits; blocks += std::max<int64_t>(blocks / 8, 1)) {
      const int64_t length = DivideUp(splits, blocks) * split_tiles_;
      const CutTotals totals = TotalsOf(length, split_tiles_);
      if (totals.items > most_items) break;
      const double cost = Cost().Of(totals, length);
      if (cost >= kWorthwhile * least) continue;
      least = cost;
      best = length;
    }
    return best;
  }

  // Launches are about as long as each other: a short last one would leave most multiprocessors
  // idle. By items as by rows, as all launches have room for the most that one has, and of decodes,
  // whose splits take few rows, one would have very many.
  void ShapeFixedOnce() {
    BeginFixed(longest_);
    int64_t rows = 0;
    int64_t items = 0;
    int64_t most_rows = 0;  // of a tile
    int64_t most_splits = 0;
    ForEachTile([&](const AttentionItem& tile, bool) {
      const int64_t splits = DivideUp<int64_t>(tile.end, split_tiles_ * kAttentionTile);
      items += splits;
      most_splits = std::max(most_splits, splits);
      if (splits <= 1) return;
      rows += splits * Rows(tile);
      most_rows = std::max(most_rows, splits * Rows(tile));
    });
    const int64_t most = std::max<int64_t>(MostRows(), 1);
    const int64_t launches = std::max<int64_t>(DivideUp(rows, most), 1);
    rows_to_launch_ = std::min(DivideUp(rows, launches) + most_rows, most);
    items_to_launch_ = DivideUp(items, launches) + most_splits;
    ShapeAsLists();
    if (batch_.cut == AttentionCut::kOnce) return;
    // For tests of chunks by wgmma, over few contexts: by doublings.
    form_.items = static_cast<int>(std::bit_ceil(static_cast<unsigned>(form_.items)));
    if (form_.merges > 0) {
      form_.merges = static_cast<int>(std::bit_ceil(static_cast<unsigned>(form_.merges)));
    }
  }

  // As many blocks as there is work for.
  void ShapeAsLists() {
    const int64_t split_tokens = split_tiles_ * kAttentionTile;
    int items = 0;
    int merges = 0;
    form_.items = 1;
    form_.launches = 1;
    ForEachTile([&](const AttentionItem& tile, bool begins_launch) {
      if (begins_launch) ++form_.launches;
      if (begins_launch) items = merges = 0;
      const auto splits = static_cast<int>(DivideUp<int64_t>(tile.end, split_tokens));
      items += splits;
      if (splits > 1) ++merges;
      form_.items = std::max(form_.items, items);
      form_.merges = std::max(form_.merges, merges);
    });
  }

  const AttentionBatch& batch_;
  const AttentionHeads& heads_;
  const AttentionMachine& machine_;
  const int32_t group_;
  AttentionForm form_;
  int64_t turn_ = 0;      // blocks that run at once
  int64_t longest_ = 0;   // context, in tiles
  int64_t shortest_ = 0;  // of a row of that sequence
  int64_t split_tiles_ = 1;
  int64_t item_tiles_ = 1;               // a multiple of it
  int64_t rows_to_launch_ = INT64_MAX;   // of partial results
  int64_t items_to_launch_ = INT64_MAX;  // of one split each
  int64_t most_splits_ = 0;              // tiles that may be split
};

const AttentionForm& AttentionWork::LayOut(const AttentionBatch& batch, const AttentionHeads& heads,
                                           DType kv_dtype, const AttentionMachine& machine) {
  LS_CHECK(heads.num_kv_heads > 0 && heads.num_heads % heads.num_kv_heads == 0) << heads.num_heads;
  LS_CHECK(machine.split_tokens % kAttentionTile == 0) << machine.split_tokens;
  LS_CHECK(!machine.wgmma || !machine.fixed_splits);  // which knows one split to a block
  LS_CHECK_EQ(batch.table_rows.size(), batch.context_lens.size());
  for (const int32_t row : batch.table_rows) {
    LS_CHECK(row >= 0 && (row + int64_t{1}) * batch.max_blocks_per_seq <= INT32_MAX)
        << "row " << row << " of block tables";
  }
  Cutter cutter(batch, heads, kv_dtype, machine);
  form_ = cutter.Shape();
  split_tiles_ = cutter.split_tiles();
  const size_t items =
      static_cast<size_t>(form_.launches * form_.LaunchBytes()) / sizeof(AttentionItem);
  if (memory_.size() < items) memory_.resize(items);
  cutter.Write(memory_.data());
  return form_;
}

}  // namespace lockstep::cuda
