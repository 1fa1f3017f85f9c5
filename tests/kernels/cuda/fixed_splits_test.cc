// Contexts in splits of fixed length: of whatever batch, and in two forms to a step's size.
#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/attention_layout.h"
#include "tests/kernels/cuda/attention_layouts.h"

namespace lockstep::cuda {
namespace {

TEST(AttentionLayout, FixedSplitsDependOnNothing) {
  const int64_t split_tokens = Cut(Decodes(1, 10), kFixed).split_tokens();
  EXPECT_EQ(Cut(Decodes(50, 70000), kFixed).split_tokens(), split_tokens);
  EXPECT_EQ(Cut(Batch({{300, 70000}, {1, 5}}), kFixed, {4, 1, 64}).split_tokens(), split_tokens);
}

TEST(AttentionLayout, LittleRoomTakesLaunchesThatAreAboutAsLong) {
  AttentionMachine machine = kFixed;
  machine.workspace_bytes = kAttentionWorkspaceBytes;
  const Batch batch({{2048, 8192}});
  const AttentionWork all = Cut(batch, machine, kHeads, DType::kBF16, AttentionCut::kOnce);
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
  const Batch batch({{64, kLongest}});
  for (const AttentionCut cut : {AttentionCut::kOnce, AttentionCut::kBest}) {
    const AttentionWork work = Cut(batch, machine, kHeads, DType::kBF16, cut);
    EXPECT_EQ(work.form().tile_rows, kAttentionDecodeRows);
    ExpectCovers(work, batch, kHeads, machine.workspace_bytes);
  }
}

// ---- of steps of chunks and decodes ----

constexpr int kMostSeqs = 256;

// Chunks first, as they are scheduled, or anywhere.
enum class Order { kChunksFirst, kRandom };

// Most tokens that there may be, all of contexts about as long as may be.
Batch ChunksAndDecodes(const AttentionLimits& limits, int num_chunks, int num_decodes, Order order,
                       std::mt19937& random) {
  std::vector<Sequence> sequences;
  const auto longest = static_cast<int32_t>(limits.context_len);
  int32_t left = static_cast<int32_t>(limits.num_tokens) - num_decodes;
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const int32_t most = std::min(left - (num_chunks - 1 - chunk), longest);
    const int32_t tokens =
        chunk == num_chunks - 1 ? most : std::uniform_int_distribution(1, most)(random);
    sequences.push_back({tokens, longest});
    left -= tokens;
  }
  std::uniform_int_distribution<int32_t> some(longest - longest / 8, longest);
  for (int decode = 0; decode < num_decodes; ++decode) {
    sequences.push_back({1, order == Order::kRandom ? some(random) : longest});
  }
  if (order == Order::kRandom) std::shuffle(sequences.begin(), sequences.end(), random);
  return Batch(sequences);
}

void ExpectFitWhatIsReserved(const AttentionLimits& limits, const AttentionHeads& heads,
                             const AttentionMachine& machine, std::mt19937& random) {
  AttentionWork work;  // for all of them
  const int64_t most = MostAttentionWork(limits, heads, DType::kBF16, machine);
  for (const int num_decodes : {8, 64, 126, 192, kMostSeqs - 1}) {
    for (const Order order : {Order::kChunksFirst, Order::kRandom}) {
      const int num_chunks = order == Order::kRandom ? 1 + num_decodes % 5 : 1;
      const Batch batch = ChunksAndDecodes(limits, std::min(num_chunks, kMostSeqs - num_decodes),
                                           num_decodes, order, random);
      for (const AttentionCut cut : {AttentionCut::kOnce, AttentionCut::kSplits}) {
        AttentionBatch view = batch.view(cut);
        view.max_context_len = limits.context_len;
        work.LayOut(view, heads, DType::kBF16, machine);
        EXPECT_LE(std::ssize(work.bytes()), most)
            << heads.num_heads << "/" << heads.num_kv_heads << " heads, " << num_decodes
            << " decodes and " << num_chunks << " chunks, " << limits.num_tokens << " tokens of "
            << limits.context_len << ", " << work.form().launches << " launches of "
            << work.form().items;
      }
    }
  }
}

// Decodes' splits take few rows of partial results each: a launch that is full of them would have
// many times the items of one full of a chunk's, and every launch has room for as many.
TEST(AttentionLayout, ChunksAndDecodesFitWhatIsReserved) {
  std::mt19937 random(5);
  for (const AttentionHeads& heads :
       {kHeads, kOneHead, AttentionHeads{16, 4, 128}, AttentionHeads{64, 8, 128},
        AttentionHeads{16, 2, 128}, AttentionHeads{4, 1, 128}, AttentionHeads{16, 1, 128}}) {
    for (const int64_t num_tokens : {512, 2048, 8192}) {
      for (const int32_t context_len : {16384, 65536, kLongest}) {
        ExpectFitWhatIsReserved({num_tokens, kMostSeqs + 1, context_len}, heads, kFixed, random);
      }
    }
    AttentionMachine machine = kFixed;
    machine.workspace_bytes = kAttentionWorkspaceBytes / 2;  // tiles of 16 rows
    ExpectFitWhatIsReserved({512, kMostSeqs + 1, kLongest}, heads, machine, random);
  }
}

TEST(AttentionLayout, LaunchesOfChunksAndOfDecodesHaveAboutAsManyItems) {
  std::mt19937 random(5);
  const AttentionLimits limits = {.num_tokens = 1024, .num_seqs = 65, .context_len = 32768};
  const Batch batch = ChunksAndDecodes(limits, 1, 63, Order::kChunksFirst, random);
  AttentionMachine machine = kFixed;
  machine.workspace_bytes = kAttentionWorkspaceBytes;
  const AttentionWork work = Cut(batch, machine, kHeads, DType::kBF16, AttentionCut::kOnce);
  ExpectCovers(work, batch, kHeads, machine.workspace_bytes);
  size_t items = 0;
  for (const Lists& lists : ListsOf(work)) items += lists.items.size();
  EXPECT_EQ(items, (31u + 63) * 32);  // 961 tokens of 4 rows are 31 tiles
  EXPECT_GT(work.form().launches, 4);
  EXPECT_LT(static_cast<size_t>(work.form().launches * work.form().items), 2 * items);
}

// ---- fixed splits of steps that repeat ----

// Contexts that grow, of one sequence or of all, up to the longest: hostile ones too, whose splits
// are far more than blocks are launched.
TEST(AttentionLayout, FixedSplitsHaveTwoFormsToASize) {
  for (const AttentionHeads& heads : {kHeads, kOneHead, AttentionHeads{64, 8, 128}}) {
    for (const int num_seqs : {1, 2, 8, 24, 64, 100, 256}) {
      const std::set<uint64_t> known = FormsAskedFor(Decodes(num_seqs, 1), kFixed, heads);
      EXPECT_EQ(known.size(), 2u);
      for (int32_t context = 1; context <= kLongest; context += 1 + context / 3) {
        for (const Batch& batch :
             {Decodes(num_seqs, context), OneLong(num_seqs, 1, 500, context)}) {
          const AttentionWork work = Cut(batch, kFixed, heads);
          EXPECT_TRUE(known.contains(work.form().Packed())) << num_seqs << " of " << context;
        }
      }
      const AttentionWork most = Cut(Decodes(num_seqs, kLongest), kFixed, heads);
      EXPECT_TRUE(known.contains(most.form().Packed())) << num_seqs;
      ExpectCovers(most, Decodes(num_seqs, kLongest), heads, kFixed.workspace_bytes);
    }
    for (const auto& [num_seqs, num_tokens] : {std::pair(1, 8), {4, 16}, {16, 32}, {63, 128}}) {
      std::vector<Sequence> sequences(static_cast<size_t>(num_seqs), {1, 1});
      sequences[0] = {num_tokens - num_seqs + 1, num_tokens};
      const std::set<uint64_t> known = FormsAskedFor(Batch(sequences), kFixed, heads);
      EXPECT_EQ(known.size(), 2u);
      for (int32_t context = num_tokens; context <= kLongest; context += 1 + context / 3) {
        sequences[0].context = context;
        EXPECT_TRUE(known.contains(Cut(Batch(sequences), kFixed, heads).form().Packed()))
            << num_seqs << " of " << context;
      }
      for (Sequence& sequence : sequences) sequence.context = kLongest;
      const AttentionWork most = Cut(Batch(sequences), kFixed, heads);
      EXPECT_TRUE(known.contains(most.form().Packed())) << num_seqs;
      ExpectCovers(most, Batch(sequences), heads, kFixed.workspace_bytes);
    }
  }
}

TEST(AttentionLayout, FewLaunchesAreRecordedForTheLongestContexts) {
  EXPECT_EQ(Cut(Decodes(64, kLongest), kFixed).form().launches, 1);
  EXPECT_EQ(Cut(Decodes(256, 2000), kFixed).form().launches, 3);  // 545 MB of 268
  EXPECT_EQ(Cut(Decodes(256, 1000), kFixed).form().launches, 1);  // nothing is split
  std::vector<Sequence> sequences(63, {1, kLongest});
  sequences[0].new_tokens = 65;
  EXPECT_EQ(Cut(Batch(sequences), kFixed).form().launches, 2);  // 270 MB
}

// One block to a multiprocessor's turn has about as many splits as another.
TEST(AttentionLayout, FixedSplitsAreDealtOverTheDevice) {
  const AttentionWork one = Cut(Decodes(1, kLongest), kFixed);
  EXPECT_EQ(NumItems(one), 32u);  // of 128 splits: 4 each, in one turn of 33 blocks to a head
  const AttentionWork few = Cut(Decodes(8, 16384), kFixed);
  EXPECT_GE(NumItems(few), 32u);
  EXPECT_EQ(NumItems(Cut(Decodes(1, 8192), kFixed)), 8u);
}

}  // namespace
}  // namespace lockstep::cuda
