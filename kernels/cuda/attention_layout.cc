#include "kernels/cuda/attention_layout.h"

#include <algorithm>
#include <bit>

#include "kernels/base/check.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kFixedSplitTiles = 16;  // 1024 tokens
constexpr int kBlocksToMultiprocessor = 2;
constexpr int kWgmmaBlocksToMultiprocessor = 1;
// Blocks of steps that repeat are launched for so many turns of the device beyond one to each tile:
// enough to fill it, and for many sequences some more, so that one much longer context is dealt
// evenly. Those that nothing is left for end at once, but each has had its turn.
constexpr int64_t kSpareTurns = 1;
constexpr int64_t kSpareTurnsOfMany = 3;

// In tiles of context that a block walks meanwhile: what it takes to begin and to end, and for a
// split's partial results to be written and merged. (A block of chunks walks a tile in 0.8 us by
// wgmma, in twice that by mma.sync, and takes 5 us beside; a decode's waits for memory once before
// its first tile.)
struct Overheads {
  double block;
  double split;
  double uneven;  // of a block: what waits for memory does so on some multiprocessors for longer
};
constexpr Overheads kDecodeOverheads = {1.0, 0.3, 0.2};
constexpr Overheads kWgmmaOverheads = {6.0, 8.0, 0.05};
constexpr Overheads kChunkOverheads = {3.0, 4.0, 0.05};
constexpr double kWorthwhile = 0.98;  // of the time with fewer splits

template <typename T>
constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

int TileRows(DType kv_dtype, bool decode) {
  if (kv_dtype == DType::kF32) return kAttentionF32Rows;
  return decode ? kAttentionDecodeRows : kAttentionChunkRows;
}

// Blocks that run at once.
int64_t BlocksOfATurn(const AttentionMachine& machine, bool decode) {
  const bool by_wgmma = machine.wgmma && !decode;
  return int64_t{machine.num_multiprocessors} *
         (by_wgmma ? kWgmmaBlocksToMultiprocessor : kBlocksToMultiprocessor);
}

// For each KV head, beyond a block to every tile.
int64_t SpareBlocks(int64_t turns, int64_t turn, const AttentionHeads& heads) {
  return CeilDiv(turns * turn, int64_t{heads.num_kv_heads});
}

}  // namespace

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
    if (is_fixed()) {
      split_tiles_ =
          machine_.split_tokens > 0 ? machine_.split_tokens / kAttentionTile : kFixedSplitTiles;
      KeepTilesWithinTheWorkspace();
      ShapeFixed();
    } else {
      ShapeFree();
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
    const int64_t stride = form_.LaunchBytes() / int64_t{sizeof(AttentionItem)};
    const auto begin_launch = [&] {
      header = reinterpret_cast<AttentionHeader*>(memory + ++launch * stride);
      *header = {};
      items = memory + launch * stride + 1;
      merges = items + form_.items;
      slot = 0;
    };
    begin_launch();
    ForEachTile([&](const AttentionItem& tile, bool begins_launch) {
      if (begins_launch) begin_launch();
      AttentionItem item = tile;
      const auto split_tokens = static_cast<int32_t>(split_tiles_ * kAttentionTile);
      const int32_t splits = CeilDiv(tile.end, split_tokens);
      if (splits > 1) {
        item.slot = slot;
        item.first = split_tokens;
        merges[header->num_merges++] = item;
      }
      for (int32_t split = 0; split < splits; ++split) {
        item.first = split * split_tokens;
        item.end = std::min(tile.end, item.first + split_tokens);
        if (splits > 1) item.slot = slot++;
        items[header->num_items++] = item;
      }
    });
    while (launch + 1 < form_.launches) begin_launch();
  }

 private:
  bool is_fixed() const { return machine_.fixed_splits || machine_.split_tokens > 0; }
  int64_t num_seqs() const { return std::ssize(batch_.context_lens); }
  int32_t NumTokens(int64_t seq) const {
    return batch_.query_starts[static_cast<size_t>(seq + 1)] -
           batch_.query_starts[static_cast<size_t>(seq)];
  }
  // Of context, 0 for sequences without work.
  int32_t ContextTiles(int64_t seq) const {
    const int32_t context = batch_.context_lens[static_cast<size_t>(seq)];
    return NumTokens(seq) == 0 ? 0 : CeilDiv(context, static_cast<int32_t>(kAttentionTile));
  }
  // Of rows.
  int32_t RowTiles(int64_t seq) const { return CeilDiv(NumTokens(seq) * group_, form_.tile_rows); }
  int64_t MostRowTiles() const {
    if (form_.decode) return num_seqs() * CeilDiv(group_, form_.tile_rows);
    return int64_t{batch_.query_starts.back()} * group_ / form_.tile_rows + num_seqs();
  }
  int64_t MostSlots() const { return AttentionSlots(form_, heads_, machine_.workspace_bytes); }

  // The last come first, as they have the longest context. visit(an item with `end` and no split,
  // whether it belongs to another launch than the one before)
  template <typename Visit>
  void ForEachTile(const Visit& visit) const {
    int64_t slots = 0;
    for (int64_t seq = num_seqs() - 1; seq >= 0; --seq) {
      const int32_t context =
          ContextTiles(seq) == 0 ? 0 : batch_.context_lens[static_cast<size_t>(seq)];
      if (context == 0) continue;
      AttentionItem item;
      item.table = static_cast<int32_t>(seq * batch_.max_blocks_per_seq);
      item.first_token = batch_.query_starts[static_cast<size_t>(seq)];
      item.first_position = context - NumTokens(seq);
      item.num_rows = NumTokens(seq) * group_;
      for (int32_t tile = RowTiles(seq) - 1; tile >= 0; --tile) {
        item.first_row = tile * form_.tile_rows;
        const int32_t last_row = std::min(item.first_row + form_.tile_rows, item.num_rows) - 1;
        item.end = item.first_position + last_row / group_ + 1;
        const int64_t splits = CeilDiv<int64_t>(item.end, split_tiles_ * kAttentionTile);
        const int64_t taken = splits > 1 ? splits : 0;
        const bool is_full = slots > 0 && slots + taken > slots_to_launch_;
        slots = is_full ? taken : slots + taken;
        visit(item, is_full);
      }
    }
  }

  // ---- as is best ----

  // Of the lengths that need no more blocks than are launched, the one with which they end first.
  void ShapeFree() {
    const int64_t tiles = MostRowTiles();
    const bool are_many = tiles * heads_.num_kv_heads > turn_;
    const bool are_exact = batch_.cut == AttentionCut::kOnce;  // none ends at once
    const int64_t turns = are_exact || (form_.decode && are_many) ? kSpareTurnsOfMany : kSpareTurns;
    const int64_t spare =
        SpareBlocks(turns, are_exact ? BlocksOfATurn(machine_, true) : turn_, heads_);
    most_splits_ = std::min(spare, MostSlots());
    slots_to_launch_ = MostSlots();
    split_tiles_ = BestLength(tiles + spare);
    const bool is_split = split_tiles_ < longest_;
    const AttentionCut cut = batch_.cut;
    const bool has_tile_kernel =
        form_.decode && !are_many && form_.tile_rows == kAttentionDecodeRows;
    form_.one_tile =
        has_tile_kernel && (cut == AttentionCut::kTiles || (is_split && split_tiles_ == 1));
    if (are_exact) return ShapeAsLists();
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
    double least = Cost(TotalsOf(whole), whole);
    // False: there is no room for splits that short.
    const auto try_length = [&](int64_t length) {
      const Totals totals = TotalsOf(length);
      if (totals.items > most_items || totals.slots > MostSlots() || totals.merges > most_splits_) {
        return false;
      }
      const double cost = Cost(totals, length);
      if (cost >= kWorthwhile * least) return true;
      least = cost;
      best = length;
      return true;
    };
    int64_t splits = 2;
    while (splits <= kMostSplits && CeilDiv(whole, splits) > kShortest) {
      if (!try_length(CeilDiv(whole, splits))) return best;
      splits += std::max<int64_t>(splits / 8, 1);
    }
    for (int64_t length = std::min(kShortest, whole - 1); length > 0; --length) {
      if (!try_length(length)) break;
    }
    return best;
  }

  // At most, as if all tiles of a sequence saw all of its context.
  struct Totals {
    int64_t items = 0;
    int64_t slots = 0;   // of them, of tiles that are split
    int64_t merges = 0;  // tiles that are split
    double walked = 0;   // tiles of context, by all items
  };
  Totals TotalsOf(int64_t length) const {
    Totals totals;
    for (int64_t seq = 0; seq < num_seqs(); ++seq) {
      const int64_t context = ContextTiles(seq);
      if (context == 0) continue;
      const int64_t tiles = RowTiles(seq);
      const int64_t splits = CeilDiv(context, length);
      totals.items += tiles * splits;
      if (splits > 1) totals.slots += tiles * splits;
      if (splits > 1) totals.merges += tiles;
      const double unseen = 0.5 * NumTokens(seq) / static_cast<double>(kAttentionTile);
      totals.walked += static_cast<double>(tiles) * (static_cast<double>(context) - unseen);
    }
    return totals;
  }

  // In tiles of context: turns of the longest block where all are about as long, else what there is
  // to do over all multiprocessors and what comes last, which of decodes may be as long as any, of
  // a chunk is its beginning.
  double Cost(const Totals& totals, int64_t length) const {
    const Overheads& overheads = form_.decode     ? kDecodeOverheads
                                 : machine_.wgmma ? kWgmmaOverheads
                                                  : kChunkOverheads;
    const auto kv_heads = static_cast<double>(heads_.num_kv_heads);
    const auto turn = static_cast<double>(turn_);
    const double beside = overheads.block + (totals.slots > 0 ? overheads.split : 0.0);
    const double block = static_cast<double>(std::min(length, longest_)) + beside;
    const double last = static_cast<double>(std::min(length, shortest_)) + beside;
    const double turns = static_cast<double>(CeilDiv(totals.items * heads_.num_kv_heads, turn_));
    const double all = totals.walked + overheads.block * static_cast<double>(totals.items) +
                       overheads.split * static_cast<double>(totals.slots);
    return std::min(turns * block, std::max(all * kv_heads / turn, block) + last) +
           overheads.uneven * block;
  }

  // ---- of fixed lengths ----

  // A row's result is the same in a tile of any size.
  void KeepTilesWithinTheWorkspace() {
    const int64_t splits = CeilDiv(longest_, split_tiles_);
    if (splits > MostSlots() && form_.tile_rows > kAttentionDecodeRows) {
      form_.tile_rows = kAttentionDecodeRows;
    }
    LS_CHECK(splits <= 1 || splits <= MostSlots())
        << machine_.workspace_bytes << " bytes are not enough for a tile's " << splits << " splits";
  }

  // Launches are about as long as each other: a short last one would leave most multiprocessors
  // idle.
  void ShapeFixed() {
    int64_t slots = 0;
    slots_to_launch_ = INT64_MAX;
    const int64_t split_tokens = split_tiles_ * kAttentionTile;
    int64_t most_splits = 0;
    ForEachTile([&](const AttentionItem& tile, bool) {
      const int64_t splits = CeilDiv<int64_t>(tile.end, split_tokens);
      if (splits > 1) slots += splits;
      most_splits = std::max(most_splits, splits);
    });
    const int64_t most = std::max<int64_t>(MostSlots(), 1);
    const int64_t launches = std::max<int64_t>(CeilDiv(slots, most), 1);
    slots_to_launch_ = std::min(CeilDiv(slots, launches) + most_splits, most);
    ShapeAsLists();
    if (batch_.cut == AttentionCut::kOnce) return;
    // For contexts of any length there can be no one form; for these few, by doublings.
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
      const auto splits = static_cast<int>(CeilDiv<int64_t>(tile.end, split_tokens));
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
  int64_t slots_to_launch_ = 0;
  int64_t most_splits_ = 0;  // tiles that may be split
};

const AttentionForm& AttentionWork::LayOut(const AttentionBatch& batch, const AttentionHeads& heads,
                                           DType kv_dtype, const AttentionMachine& machine) {
  LS_CHECK(heads.num_kv_heads > 0 && heads.num_heads % heads.num_kv_heads == 0) << heads.num_heads;
  LS_CHECK(machine.split_tokens % kAttentionTile == 0) << machine.split_tokens;
  LS_CHECK(std::ssize(batch.context_lens) * batch.max_blocks_per_seq <= INT32_MAX)
      << "block tables of " << batch.context_lens.size() << " sequences";
  Cutter cutter(batch, heads, kv_dtype, machine);
  form_ = cutter.Shape();
  split_tiles_ = cutter.split_tiles();
  const size_t items =
      static_cast<size_t>(form_.launches * form_.LaunchBytes()) / sizeof(AttentionItem);
  if (memory_.size() < items) memory_.resize(items);
  cutter.Write(memory_.data());
  return form_;
}

int64_t MostAttentionWork(const AttentionLimits& limits, const AttentionHeads& heads,
                          DType kv_dtype, const AttentionMachine& machine) {
  const int group = heads.num_heads / heads.num_kv_heads;
  const int rows = TileRows(kv_dtype, false);
  const int64_t chunks = CeilDiv(limits.num_tokens * group, int64_t{rows}) + limits.num_seqs;
  const int64_t decodes = limits.num_seqs * CeilDiv(group, TileRows(kv_dtype, true));
  int64_t items = std::max(chunks, decodes);
  if (machine.fixed_splits) {
    // In lists as long as a power of two, of launches that are about as long as each other; of
    // which the smallest tiles have most.
    const int64_t splits = CeilDiv(limits.context_len, kFixedSplitTiles * kAttentionTile);
    AttentionForm chunk_form;
    chunk_form.tile_rows = rows;
    chunk_form.decode = false;
    if (rows > kAttentionDecodeRows &&
        splits > AttentionSlots(chunk_form, heads, machine.workspace_bytes)) {
      items = std::max(items, chunks * rows / kAttentionDecodeRows);
    }
    items *= 4 * splits;
  } else {
    items += SpareBlocks(kSpareTurnsOfMany, BlocksOfATurn(machine, true), heads);
  }
  return (2 * items + 2) * int64_t{sizeof(AttentionItem)};
}

}  // namespace lockstep::cuda
