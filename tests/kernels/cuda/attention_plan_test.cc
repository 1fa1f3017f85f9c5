// How contexts are split: where to gain, and never more than the workspace is for.
#include "kernels/cuda/kernels.h"

#include "gtest/gtest.h"

namespace lockstep::cuda {
namespace {

BatchIndex Batch(int64_t num_seqs, int64_t query_len, int64_t context) {
  BatchIndex batch;
  batch.num_seqs = num_seqs;
  batch.num_tokens = num_seqs * query_len;
  batch.max_query_len = query_len;
  batch.max_context_len = context;
  return batch;
}

TEST(PlanAttention, SplitsAreWholeTilesAndCoverTheContext) {
  for (const int64_t num_seqs : {1, 3, 16, 200}) {
    for (const int64_t query_len : {1, 7, 512}) {
      for (const int64_t context : {1, 63, 64, 65, 255, 257, 1000, 8192, 131072}) {
        for (const bool fixed : {false, true}) {
          const AttentionPlan plan =
              PlanAttention(Batch(num_seqs, query_len, context), 8, 132, fixed);
          EXPECT_EQ(plan.split_tokens % kAttentionTile, 0);
          EXPECT_GE(plan.split_tokens * plan.max_splits, context);
          EXPECT_LT(plan.split_tokens * (plan.max_splits - 1), context);
          EXPECT_TRUE(plan.max_splits == 1 || plan.split_tokens >= 256) << plan.split_tokens;
        }
      }
    }
  }
}

// By wgmma a multiprocessor has one block of rows at a time instead of two.
TEST(PlanAttention, ChunksByWgmmaFillTheMultiprocessorsWithFewerBlocks) {
  const TensorMapEncoder encode = [](auto...) { return CUDA_SUCCESS; };
  const BatchIndex chunk = Batch(1, 512, 900);  // 128 blocks
  EXPECT_EQ(PlanAttention(chunk, 8, 132, false, encode).max_splits, 1);
  EXPECT_GT(PlanAttention(chunk, 8, 132, false).max_splits, 1);
  EXPECT_EQ(PlanAttention(Batch(1, 1, 32768), 8, 132, false, encode).max_splits,
            PlanAttention(Batch(1, 1, 32768), 8, 132, false).max_splits);
}

TEST(PlanAttention, OneLongDecodeFillsTheMultiprocessors) {
  const AttentionPlan plan = PlanAttention(Batch(1, 1, 32768), 8, 132, false);
  EXPECT_GE(plan.max_splits * 8, 132);
  EXPECT_LE(plan.max_splits * 8, 4 * 132);
}

TEST(PlanAttention, ManyShortDecodesAreNotSplit) {
  EXPECT_EQ(PlanAttention(Batch(64, 1, 1024), 8, 132, false).max_splits, 1);
}

TEST(PlanAttention, OneLongDecodeAmongManyIsShared) {
  EXPECT_GE(PlanAttention(Batch(64, 1, 32768), 8, 132, false).max_splits * 8, 132);
}

TEST(PlanAttention, LargePrefillsAreNotSplit) {
  EXPECT_EQ(PlanAttention(Batch(1, 8192, 8192), 8, 132, false).max_splits, 1);
}

TEST(PlanAttention, PartialResultsStayWithinTheirBound) {
  for (const int64_t num_tokens : {16, 128, 512, 2048}) {
    for (const BatchIndex& batch : {Batch(1, num_tokens, 131072), Batch(num_tokens, 1, 131072)}) {
      const AttentionPlan plan = PlanAttention(batch, 8, 132, false);
      EXPECT_LE(AttentionWorkspaceBytes(plan, num_tokens, 32, 128), 66 << 20);
    }
  }
}

TEST(PlanAttention, FixedSplitsDependOnNothing) {
  const int64_t split_tokens = PlanAttention(Batch(1, 1, 10), 8, 132, true).split_tokens;
  EXPECT_EQ(PlanAttention(Batch(50, 1, 70000), 8, 132, true).split_tokens, split_tokens);
  EXPECT_EQ(PlanAttention(Batch(2, 300, 70000), 1, 20, true).split_tokens, split_tokens);
}

TEST(AttentionWorkspaceBytes, IsNothingForOneSplit) {
  EXPECT_EQ(AttentionWorkspaceBytes({1024, 1}, 7, 32, 128), 0);
  EXPECT_EQ(AttentionWorkspaceBytes({1024, 3}, 7, 32, 128), 7 * 32 * 3 * 130 * 4);
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
