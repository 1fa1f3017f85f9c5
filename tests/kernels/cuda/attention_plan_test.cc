// How contexts are split: where to gain, and never more than the workspace is for.
#include "kernels/cuda/kernels.h"

#include "gtest/gtest.h"

namespace lockstep::cuda {
namespace {

constexpr AttentionHeads kHeads = {32, 8, 128};
const TensorMapEncoder kByWgmma = [](auto...) { return CUDA_SUCCESS; };

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
              PlanAttention(Batch(num_seqs, query_len, context), kHeads, 132, fixed);
          EXPECT_EQ(plan.split_tokens % kAttentionTile, 0);
          EXPECT_GE(plan.split_tokens * plan.max_splits, context);
          EXPECT_LT(plan.split_tokens * (plan.max_splits - 1), context);
          const int64_t shortest = query_len == 1 && context >= 512 ? kAttentionTile : 256;
          EXPECT_TRUE(plan.max_splits == 1 || plan.split_tokens >= shortest) << plan.split_tokens;
        }
      }
    }
  }
}

// By wgmma a multiprocessor has one block of rows at a time instead of two.
TEST(PlanAttention, ChunksByWgmmaFillTheMultiprocessorsWithFewerBlocks) {
  const BatchIndex chunk = Batch(1, 512, 900);  // 128 blocks
  EXPECT_EQ(PlanAttention(chunk, kHeads, 132, false, kByWgmma).max_splits, 1);
  EXPECT_GT(PlanAttention(chunk, kHeads, 132, false).max_splits, 1);
  EXPECT_EQ(PlanAttention(Batch(1, 1, 32768), kHeads, 132, false, kByWgmma).max_splits,
            PlanAttention(Batch(1, 1, 32768), kHeads, 132, false).max_splits);
}

TEST(PlanAttention, OneLongDecodeFillsTheMultiprocessors) {
  const AttentionPlan plan = PlanAttention(Batch(1, 1, 32768), kHeads, 132, false);
  EXPECT_GE(plan.max_splits * 8, 132);
  EXPECT_LE(plan.max_splits * 8, 4 * 132);
}

// 8 KV heads: a block each were a sixteenth of them.
TEST(PlanAttention, OneShorterDecodeFillsThemToo) {
  EXPECT_EQ(PlanAttention(Batch(1, 1, 1024), kHeads, 132, false).max_splits, 16);
  EXPECT_EQ(PlanAttention(Batch(1, 1, 511), kHeads, 132, false).max_splits, 1);
}

// One of eight KV heads, as ranks of tensor parallelism have.
TEST(PlanAttention, RoundingSplitsToTilesLeavesNoMultiprocessorIdle) {
  constexpr AttentionHeads kOneHead = {8, 1, 128};
  for (const int64_t context : {1280, 4096}) {
    const AttentionPlan plan = PlanAttention(Batch(1, 1, context), kOneHead, 132, false);
    EXPECT_EQ(plan.split_tokens, kAttentionTile) << context;
  }
  EXPECT_EQ(PlanAttention(Batch(1, 1, 8192), kOneHead, 132, false).split_tokens, 2 * kAttentionTile)
      << "more would take longer to merge";
}

TEST(PlanAttention, ManyShortDecodesAreNotSplit) {
  EXPECT_EQ(PlanAttention(Batch(64, 1, 1024), kHeads, 132, false).max_splits, 1);
}

TEST(PlanAttention, OneLongDecodeAmongManyIsShared) {
  EXPECT_GE(PlanAttention(Batch(64, 1, 32768), kHeads, 132, false).max_splits * 8, 132);
}

int64_t SplitsByWgmma(const BatchIndex& batch) {
  return PlanAttention(batch, kHeads, 132, false, kByWgmma).max_splits;
}

// A block has as much to do before and after a split of 1024 tokens as a third of its work.
TEST(PlanAttention, ChunksThatFillTheMultiprocessorsAreNotSplit) {
  EXPECT_EQ(SplitsByWgmma(Batch(1, 512, 32768)), 1);  // 128 blocks
  EXPECT_EQ(SplitsByWgmma(Batch(1, 1000, 4096)), 1);  // 248
  EXPECT_EQ(SplitsByWgmma(Batch(2, 1000, 8192)), 1);  // 496
}

TEST(PlanAttention, LongChunksThatFillTheLastTurnBadlyAreSplit) {
  EXPECT_EQ(SplitsByWgmma(Batch(1, 640, 32768)), 4);  // 160 blocks
  EXPECT_EQ(SplitsByWgmma(Batch(1, 640, 4096)), 1);   // not worth it
}

// Which of the sequences is the long one nobody knows: it may be a decode, a block to each KV head.
TEST(PlanAttention, OneLongContextAmongChunksIsShared) {
  EXPECT_GE(SplitsByWgmma(Batch(4, 2, 32768)) * 8, 132);
  EXPECT_EQ(SplitsByWgmma(Batch(32, 2, 32768)), 5);    // 256 blocks: two turns
  EXPECT_EQ(SplitsByWgmma(Batch(128, 2, 131072)), 8);  // 1024
  EXPECT_EQ(SplitsByWgmma(Batch(128, 2, 16384)), 1);
}

TEST(PlanAttention, LargePrefillsAreNotSplit) {
  EXPECT_EQ(PlanAttention(Batch(1, 8192, 8192), kHeads, 132, false).max_splits, 1);
}

// Kernels that one call of LaunchAttention issues, captured and not run.
size_t NumKernels(const BatchIndex& batch, const AttentionHeads& heads, const AttentionPlan& plan,
                  int64_t workspace_bytes) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  KvCacheView cache;
  cache.dtype = DType::kBF16;
  cache.num_kv_heads = heads.num_kv_heads;
  cache.block_size = 16;
  cache.head_dim = heads.head_dim;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(LaunchAttention({nullptr, heads.num_heads, 1.0f, &batch, &cache, nullptr}, plan,
                            DType::kBF16, {nullptr, workspace_bytes}, stream),
            cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t num_nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &num_nodes), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  return num_nodes;
}

// A second launch, of what the first had no room for, would leave most multiprocessors idle.
TEST(PlanAttention, PartialResultsOfAllTokensFitTheWorkspace) {
  for (const int group : {1, 4, 8}) {
    for (const int head_dim : {64, 128}) {
      const AttentionHeads heads = {8 * group, 8, head_dim};
      for (const int64_t num_tokens : {16, 128, 512, 1024, 2048, 2049, 8192}) {
        for (const int64_t context : {8192, 32768, 131072}) {
          for (const BatchIndex& batch :
               {Batch(1, num_tokens, context), Batch(num_tokens, 1, context)}) {
            const AttentionPlan plan = PlanAttention(batch, heads, 132, false);
            EXPECT_LE(AttentionWorkspaceBytes(plan, num_tokens, heads.num_heads, head_dim),
                      kAttentionWorkspaceBytes);
            EXPECT_EQ(NumKernels(batch, heads, plan, kAttentionWorkspaceBytes),
                      plan.max_splits == 1 ? 1 : 2)
                << num_tokens << " tokens in groups of " << group << " over " << context;
          }
        }
      }
    }
  }
}

TEST(AttentionTokensAtOnce, LaunchesAreEvenAndCutBetweenTiles) {
  const auto at_once = [](int64_t num_tokens, int64_t room, int group, bool decode = false) {
    const AttentionHeads heads = {8 * group, 8, 128};
    const AttentionPlan plan = {1024, 32};
    const int64_t bytes = AttentionWorkspaceBytes(plan, room, heads.num_heads, heads.head_dim);
    return AttentionTokensAtOnce(plan, num_tokens, heads, decode, bytes);
  };
  EXPECT_EQ(at_once(2048, 2048, 4), 2048);
  EXPECT_EQ(at_once(2048, 2047, 4), 1024);
  EXPECT_EQ(at_once(2048, 900, 4), 704);  // tiles of 32 tokens
  EXPECT_EQ(at_once(100, 99, 8), 64);     // of 16
  EXPECT_EQ(at_once(100, 99, 1), 50);     // no room for a tile
  EXPECT_EQ(at_once(100, 99, 8, true), 50);
  EXPECT_EQ(at_once(100, 1, 8), 1);
  EXPECT_EQ(at_once(100, 0, 8), 0);
  EXPECT_EQ(at_once(0, 1, 8), 0);
  EXPECT_EQ(AttentionTokensAtOnce({1024, 1}, 5000, {32, 8, 128}, false, 0), 5000);
}

TEST(PlanAttention, FixedSplitsDependOnNothing) {
  const int64_t split_tokens = PlanAttention(Batch(1, 1, 10), kHeads, 132, true).split_tokens;
  EXPECT_EQ(PlanAttention(Batch(50, 1, 70000), kHeads, 132, true).split_tokens, split_tokens);
  EXPECT_EQ(PlanAttention(Batch(2, 300, 70000), {4, 1, 64}, 20, true).split_tokens, split_tokens);
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
