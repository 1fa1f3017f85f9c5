// How contexts are cut: all of them, within what is launched and has room, where to gain, and in
// few forms.
#include "kernels/cuda/attention_layout.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/attention_layouts.h"

namespace lockstep::cuda {
namespace {

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
          for (const int64_t shrunk : {1, 8}) {
            const int64_t workspace =
                (machine.fixed_splits ? kFixedAttentionWorkspaceBytes : kAttentionWorkspaceBytes) /
                shrunk;
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

TEST(AttentionLayout, AllocatesNothingWithinWhatIsReserved) {
  const AttentionLimits limits = {.num_tokens = 512, .num_seqs = 200, .context_len = 131072};
  AttentionWork work;
  work.Reserve(MostAttentionWork(limits, kHeads, DType::kBF16, kMachine));
  const std::byte* const memory = work.bytes().data();
  for (const Batch& batch : {Decodes(1, 70), OneLong(200, 1, 900, 131072), Batch({{512, 512}})}) {
    work.LayOut(batch.view(AttentionCut::kOnce), kHeads, DType::kBF16, kMachine);
    EXPECT_EQ(work.bytes().data(), memory);
  }
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
  form.launches = 2000;
  form.several_splits = true;
  const AttentionForm same = AttentionForm::Unpacked(form.Packed());
  EXPECT_EQ(same.Packed(), form.Packed());
  EXPECT_EQ(same.tile_rows, form.tile_rows);
  EXPECT_EQ(same.decode, form.decode);
  EXPECT_EQ(same.one_tile, form.one_tile);
  EXPECT_EQ(same.items, form.items);
  EXPECT_EQ(same.merges, form.merges);
  EXPECT_EQ(same.launches, form.launches);
  EXPECT_EQ(same.several_splits, form.several_splits);
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

// Whose numbers are multiplied as bf16.
TEST(AttentionLayout, E4m3CachesAreCutAsBf16Are) {
  for (const Batch& batch : {Decodes(3, 1000), OneLong(30, 3, 900, 40000), Batch({{512, 512}})}) {
    for (const AttentionMachine& machine : {kMachine, kFixed}) {
      const AttentionWork bf16 = Cut(batch, machine);
      const AttentionWork e4m3 = Cut(batch, machine, kHeads, DType::kE4M3);
      EXPECT_EQ(e4m3.form().Packed(), bf16.form().Packed());
      EXPECT_EQ(e4m3.split_tokens(), bf16.split_tokens());
    }
  }
}

TEST(AttentionSupports, HeadSizesOfTheKernels) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    EXPECT_TRUE(AttentionSupports(dtype, 8));
    EXPECT_TRUE(AttentionSupports(dtype, 128));
    EXPECT_FALSE(AttentionSupports(dtype, 12));
    EXPECT_FALSE(AttentionSupports(dtype, 136));
  }
  EXPECT_TRUE(AttentionSupports(DType::kE4M3, 16));
  EXPECT_TRUE(AttentionSupports(DType::kE4M3, 128));
  EXPECT_FALSE(AttentionSupports(DType::kE4M3, 24));
  EXPECT_FALSE(AttentionSupports(DType::kE4M3, 144));
  EXPECT_TRUE(AttentionSupports(DType::kF32, 2));
  EXPECT_TRUE(AttentionSupports(DType::kF32, 256));
  EXPECT_FALSE(AttentionSupports(DType::kF32, 7));
  EXPECT_FALSE(AttentionSupports(DType::kF32, 258));
  EXPECT_FALSE(AttentionSupports(DType::kF32, 0));
}

}  // namespace
}  // namespace lockstep::cuda
