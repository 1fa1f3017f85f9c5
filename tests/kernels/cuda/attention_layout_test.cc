// How contexts are cut: all of them, within what is launched and has room, where to gain, and in
// few forms.
#include "kernels/cuda/attention_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {
namespace {

constexpr AttentionHeads kHeads = {32, 8, 128};
constexpr AttentionHeads kOneHead = {8, 1, 128};  // as ranks of tensor parallelism have
constexpr int kMultiprocessors = 132;
constexpr AttentionMachine kMachine = {.num_multiprocessors = kMultiprocessors};
constexpr AttentionMachine kByWgmma = {.num_multiprocessors = kMultiprocessors, .wgmma = true};
constexpr AttentionMachine kFixed = {.num_multiprocessors = kMultiprocessors, .fixed_splits = true};

// Tokens of one sequence: in the batch, and in its context with them.
struct Sequence {
  int32_t new_tokens;
  int32_t context;
};

class Batch {
 public:
  explicit Batch(const std::vector<Sequence>& sequences) {
    for (const auto& [new_tokens, context] : sequences) {
      starts_.push_back(starts_.back() + new_tokens);
      contexts_.push_back(context);
    }
  }
  AttentionBatch view(AttentionCut cut) const { return {starts_, contexts_, kWidth, cut}; }
  static constexpr int64_t kWidth = 8192;
  const std::vector<int32_t>& starts() const { return starts_; }
  const std::vector<int32_t>& contexts() const { return contexts_; }

 private:
  std::vector<int32_t> starts_ = {0};
  std::vector<int32_t> contexts_;
};

Batch Decodes(int count, int32_t context) {
  return Batch(std::vector<Sequence>(static_cast<size_t>(count), {1, context}));
}
Batch OneLong(int count, int32_t new_tokens, int32_t context, int32_t longest) {
  std::vector<Sequence> sequences(static_cast<size_t>(count), {new_tokens, context});
  sequences[sequences.size() / 2].context = longest;
  return Batch(sequences);
}

AttentionWork Cut(const Batch& batch, const AttentionMachine& machine,
                  const AttentionHeads& heads = kHeads, DType dtype = DType::kBF16,
                  AttentionCut cut = AttentionCut::kBest) {
  AttentionWork work;
  work.LayOut(batch.view(cut), heads, dtype, machine);
  return work;
}

struct Lists {
  std::vector<AttentionItem> items;
  std::vector<AttentionMerge> merges;
};
std::vector<Lists> ListsOf(const AttentionWork& work) {
  std::vector<Lists> all;
  const AttentionForm& form = work.form();
  for (int launch = 0; launch < form.launches; ++launch) {
    const auto* header =
        reinterpret_cast<const AttentionHeader*>(work.bytes().data() + launch * form.LaunchBytes());
    const auto* items = reinterpret_cast<const AttentionItem*>(header + 1);
    EXPECT_LE(header->num_items, form.items);
    EXPECT_LE(header->num_merges, form.merges);
    const auto* merges = items + form.items;
    all.push_back({{items, items + header->num_items}, {merges, merges + header->num_merges}});
  }
  return all;
}
size_t NumItems(const AttentionWork& work) { return ListsOf(work)[0].items.size(); }

// All rows of all sequences, each once, with all of the context that the tile's last row sees, in
// splits that are merged if they are several.
void ExpectCovers(const AttentionWork& work, const Batch& batch, const AttentionHeads& heads,
                  int64_t workspace_bytes) {
  const AttentionForm& form = work.form();
  const int group = heads.num_heads / heads.num_kv_heads;
  std::set<std::pair<int, int>> tiles;  // a sequence's table, first row
  for (const Lists& lists : ListsOf(work)) {
    std::map<std::pair<int, int>, std::vector<AttentionItem>> splits;
    std::set<int> slots;
    for (const AttentionItem& item : lists.items) {
      splits[{item.table, item.first_row}].push_back(item);
      if (item.slot < 0) continue;
      EXPECT_TRUE(slots.insert(item.slot).second) << "two splits in slot " << item.slot;
      EXPECT_LT(item.slot, AttentionSlots(form, heads, workspace_bytes));
    }
    size_t num_merged = 0;
    for (const auto& [tile, items] : splits) {
      EXPECT_TRUE(tiles.insert(tile).second) << "a tile in two launches";
      const auto seq = static_cast<size_t>(tile.first / Batch::kWidth);
      const int num_tokens = batch.starts()[seq + 1] - batch.starts()[seq];
      const int last_row = std::min(tile.second + form.tile_rows, num_tokens * group) - 1;
      const int end = batch.contexts()[seq] - num_tokens + last_row / group + 1;
      for (size_t i = 0; i < items.size(); ++i) {
        EXPECT_EQ(items[i].first_token, batch.starts()[seq]);
        EXPECT_EQ(items[i].first_position, batch.contexts()[seq] - num_tokens);
        EXPECT_EQ(items[i].num_rows, num_tokens * group);
        EXPECT_EQ(items[i].first, i * work.split_tokens());
        EXPECT_EQ(items[i].end, std::min<int64_t>(end, (i + 1) * work.split_tokens()));
        EXPECT_EQ(items[i].slot, items.size() == 1 ? -1 : items[0].slot + static_cast<int>(i));
      }
      EXPECT_EQ(items.back().end, end);
      if (items.size() == 1) continue;
      ++num_merged;
      const auto merge = std::find_if(lists.merges.begin(), lists.merges.end(), [&](auto& m) {
        return m.table == tile.first && m.first_row == tile.second;
      });
      ASSERT_NE(merge, lists.merges.end());
      EXPECT_EQ(merge->slot, items[0].slot);
      EXPECT_EQ(merge->first, work.split_tokens());
    }
    EXPECT_EQ(lists.merges.size(), num_merged);
  }
  size_t num_tiles = 0;
  for (size_t seq = 0; seq < batch.contexts().size(); ++seq) {
    const int rows = (batch.starts()[seq + 1] - batch.starts()[seq]) * group;
    if (batch.contexts()[seq] > 0) num_tiles += (rows + form.tile_rows - 1) / form.tile_rows;
  }
  EXPECT_EQ(tiles.size(), num_tiles);
}

// A step that does not repeat launches no block too many.
void ExpectExactOnceOnly(const Batch& batch, const AttentionMachine& machine,
                         const AttentionHeads& heads, DType dtype) {
  const AttentionWork once = Cut(batch, machine, heads, dtype, AttentionCut::kOnce);
  size_t most_items = 1;
  size_t most_merges = 0;
  for (const Lists& lists : ListsOf(once)) {
    most_items = std::max(most_items, lists.items.size());
    most_merges = std::max(most_merges, lists.merges.size());
  }
  EXPECT_EQ(once.form().items, static_cast<int>(most_items));
  EXPECT_EQ(once.form().merges, static_cast<int>(most_merges));
  ExpectCovers(once, batch, heads, machine.workspace_bytes);
}

TEST(AttentionLayout, CoversAllContextsWithinWhatIsLaunched) {
  const std::vector<Batch> batches = {
      Decodes(1, 1), Decodes(1, 64), Decodes(1, 65), Decodes(3, 1000), Decodes(200, 70),
      Decodes(1, 131072), Decodes(64, 5000), OneLong(64, 1, 900, 131072),
      OneLong(30, 3, 900, 40000), Batch({{512, 512}}), Batch({{2000, 2000}}),
      Batch({{100, 9000}, {1, 70}, {1, 30000}, {33, 33}}),
      // Padding: tokens without context, sequences without tokens.
      Batch({{1, 70}, {1, 0}, {1, 0}}), Batch({{40, 400}, {1, 5000}, {23, 0}, {0, 0}}), Batch({}),
      Batch({{1, 0}})};
  for (const Batch& batch : batches) {
    for (AttentionMachine machine : {kMachine, kByWgmma, kFixed}) {
      for (const AttentionHeads& heads : {kHeads, kOneHead, AttentionHeads{40, 2, 64}}) {
        for (const DType dtype : {DType::kBF16, DType::kF32}) {
          for (const int64_t workspace : {kAttentionWorkspaceBytes, kAttentionWorkspaceBytes / 8}) {
            machine.workspace_bytes = workspace;
            ExpectExactOnceOnly(batch, machine, heads, dtype);
            const AttentionWork work = Cut(batch, machine, heads, dtype);
            SCOPED_TRACE(::testing::Message()
                         << batch.contexts().size() << " sequences, " << batch.starts().back()
                         << " tokens, " << heads.num_kv_heads << " KV heads, splits of "
                         << work.split_tokens());
            ExpectCovers(work, batch, heads, workspace);
            const AttentionLimits limits = {batch.starts().back(),
                                            static_cast<int64_t>(batch.contexts().size()), 131072};
            EXPECT_LE(work.bytes().size(), MostAttentionWork(limits, heads, dtype, machine));
            if (!machine.fixed_splits) {
              EXPECT_EQ(work.form().launches, 1);
            }
          }
        }
      }
    }
  }
}

// Those of a step of the same size with short contexts, as it is recorded before any come.
std::set<uint64_t> FormsAskedFor(const Batch& batch, const AttentionMachine& machine,
                                 const AttentionHeads& heads) {
  std::set<uint64_t> forms;
  for (const AttentionCut cut :
       {AttentionCut::kWhole, AttentionCut::kTiles, AttentionCut::kSplits}) {
    const AttentionWork work = Cut(batch, machine, heads, DType::kBF16, cut);
    ExpectCovers(work, batch, heads, machine.workspace_bytes);
    forms.insert(work.form().Packed());
  }
  return forms;
}

// Or a step would be recorded anew with its contexts' growth.
TEST(AttentionLayout, BatchesOfOneSizeHaveTheFormsThatCanBeAskedFor) {
  for (const AttentionHeads& heads : {kHeads, kOneHead, AttentionHeads{64, 4, 128}}) {
    for (const int num_seqs : {1, 2, 8, 24, 33, 64, 100, 256}) {
      const std::set<uint64_t> known = FormsAskedFor(Decodes(num_seqs, 1), kMachine, heads);
      EXPECT_LE(known.size(), 3u);
      for (int32_t context = 1; context <= 131072; context += 1 + context / 7) {
        for (const Batch& batch : {Decodes(num_seqs, context), OneLong(num_seqs, 1, 1, context),
                                   OneLong(num_seqs, 1, 500, context)}) {
          EXPECT_TRUE(known.contains(Cut(batch, kMachine, heads).form().Packed()))
              << num_seqs << " of " << context;
        }
      }
    }
    for (const int num_seqs : {1, 4, 16, 60}) {
      std::vector<Sequence> sequences(static_cast<size_t>(num_seqs), {1, 1});
      sequences[0] = {8, 8};
      const std::set<uint64_t> known = FormsAskedFor(Batch(sequences), kByWgmma, heads);
      EXPECT_EQ(known.size(), 2u);
      for (int32_t context = 8; context <= 131072; context += 1 + context / 7) {
        sequences[0] = {8, context};
        EXPECT_TRUE(known.contains(Cut(Batch(sequences), kByWgmma, heads).form().Packed()))
            << num_seqs << " of " << context;
      }
    }
  }
}

TEST(AttentionLayout, FormsSurvivePacking) {
  AttentionForm form;
  form.tile_rows = kAttentionChunkRows;
  form.decode = false;
  form.one_tile = true;
  form.items = (1 << 20) + 3;
  form.merges = 77;
  form.launches = 4000;
  const AttentionForm same = AttentionForm::Unpacked(form.Packed());
  EXPECT_EQ(same.Packed(), form.Packed());
  EXPECT_EQ(same.tile_rows, form.tile_rows);
  EXPECT_EQ(same.decode, form.decode);
  EXPECT_EQ(same.one_tile, form.one_tile);
  EXPECT_EQ(same.items, form.items);
  EXPECT_EQ(same.merges, form.merges);
  EXPECT_EQ(same.launches, form.launches);
}

TEST(AttentionLayout, OneDecodeFillsTheMultiprocessors) {
  const AttentionWork shorter = Cut(Decodes(1, 1024), kMachine);
  EXPECT_EQ(NumItems(shorter), 16u);  // 8 KV heads: a block each were a sixteenth of them
  EXPECT_TRUE(shorter.form().one_tile);
  const AttentionWork longer = Cut(Decodes(1, 32768), kMachine);
  EXPECT_FALSE(longer.form().one_tile);
  EXPECT_GE(NumItems(longer) * 8, 2 * kMultiprocessors * 9 / 10);
  EXPECT_EQ(NumItems(Cut(Decodes(1, 4096), kMachine, kOneHead)), 64u);
}

TEST(AttentionLayout, ManyShortDecodesAreNotSplit) {
  const AttentionWork work = Cut(Decodes(64, 1024), kMachine);
  EXPECT_EQ(NumItems(work), 64u);
  EXPECT_EQ(work.form().items, 64);  // none ends at once
  EXPECT_EQ(work.form().merges, 0);
}

// Else its few blocks would go on alone when all others are done.
TEST(AttentionLayout, OneLongDecodeAmongManyIsShared) {
  const AttentionWork work = Cut(OneLong(64, 1, 1000, 131072), kMachine);
  EXPECT_GE(NumItems(work), 63u + 64u);
  EXPECT_LE(work.split_tokens(), 2048);
}

TEST(AttentionLayout, LongDecodesThatFillTheMultiprocessorsTakeAFewTurns) {
  const size_t items = NumItems(Cut(Decodes(32, 32768), kMachine));
  EXPECT_GE(items, 2 * 32u);
  EXPECT_LE(items, 8 * 32u);
}

int64_t SplitsByWgmma(int32_t new_tokens, int32_t context) {
  const AttentionWork work =
      Cut(Batch({{new_tokens, context}}), kByWgmma, kHeads, DType::kBF16, AttentionCut::kOnce);
  return (context + work.split_tokens() - 1) / work.split_tokens();
}

TEST(AttentionLayout, ChunksThatFillTheMultiprocessorsAreNotSplit) {
  EXPECT_EQ(SplitsByWgmma(512, 32768), 1);  // 128 blocks
  EXPECT_EQ(SplitsByWgmma(1000, 4096), 1);  // 256
  EXPECT_EQ(SplitsByWgmma(8192, 8192), 1);
  EXPECT_EQ(Cut(Batch({{8192, 8192}}), kByWgmma, kOneHead).form().merges, 0);
}

TEST(AttentionLayout, LongChunksThatFillTheLastTurnBadlyAreSplit) {
  EXPECT_GE(SplitsByWgmma(640, 32768), 3);  // 160 blocks
  EXPECT_EQ(SplitsByWgmma(640, 2048), 1);   // not worth it
}

TEST(AttentionLayout, FewChunksAreSplit) {
  EXPECT_GE(SplitsByWgmma(32, 32768) * 8, kMultiprocessors * 9 / 10);
  // By mma.sync a multiprocessor has two blocks of rows at a time.
  EXPECT_GT(NumItems(Cut(Batch({{512, 900}}), kMachine)), 16u);
  EXPECT_EQ(NumItems(Cut(Batch({{512, 900}}), kByWgmma)), 16u);
}

TEST(AttentionLayout, OneLongContextAmongChunksIsShared) {
  const AttentionWork work = Cut(OneLong(32, 2, 100, 131072), kByWgmma);
  EXPECT_GE(NumItems(work), 31u + 16u);
}

TEST(AttentionLayout, FixedSplitsDependOnNothing) {
  const int64_t split_tokens = Cut(Decodes(1, 10), kFixed).split_tokens();
  EXPECT_EQ(Cut(Decodes(50, 70000), kFixed).split_tokens(), split_tokens);
  EXPECT_EQ(Cut(Batch({{300, 70000}, {1, 5}}), kFixed, {4, 1, 64}).split_tokens(), split_tokens);
}

TEST(AttentionLayout, LittleRoomTakesLaunchesThatAreAboutAsLong) {
  AttentionMachine machine = kFixed;
  const Batch batch({{2048, 8192}});
  const AttentionWork all = Cut(batch, machine);
  EXPECT_GT(all.form().launches, 1);  // 64 tiles of 6 to 8 splits, of 532 KB for all heads
  size_t most = 0;
  size_t fewest = SIZE_MAX;
  for (const Lists& lists : ListsOf(all)) {
    most = std::max(most, lists.items.size());
    fewest = std::min(fewest, lists.items.size());
  }
  EXPECT_LT(most, 2 * fewest);
}

// 128 rows would have no room for a tile's splits.
TEST(AttentionLayout, TilesAreSmallerWhereTheirSplitsHaveNoRoom) {
  AttentionMachine machine = kFixed;
  machine.workspace_bytes = kAttentionWorkspaceBytes / 2;
  const Batch batch({{64, 131072}});
  const AttentionWork work = Cut(batch, machine);
  EXPECT_EQ(work.form().tile_rows, kAttentionDecodeRows);
  ExpectCovers(work, batch, kHeads, machine.workspace_bytes);
}

TEST(AttentionSupports, HeadSizesOfTheKernels) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    EXPECT_TRUE(AttentionSupports(dtype, 8));
    EXPECT_TRUE(AttentionSupports(dtype, 128));
    EXPECT_FALSE(AttentionSupports(dtype, 12));
    EXPECT_FALSE(AttentionSupports(dtype, 136));
  }
  EXPECT_TRUE(AttentionSupports(DType::kF32, 2));
  EXPECT_TRUE(AttentionSupports(DType::kF32, 256));
  EXPECT_FALSE(AttentionSupports(DType::kF32, 7));
  EXPECT_FALSE(AttentionSupports(DType::kF32, 258));
  EXPECT_FALSE(AttentionSupports(DType::kF32, 0));
}

}  // namespace
}  // namespace lockstep::cuda
