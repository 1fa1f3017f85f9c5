#include "deploy/plan/kv_bytes.h"

#include "deploy/plan/catalog.h"
#include "gtest/gtest.h"

namespace lockstep::plan {
namespace {

int64_t PerToken(const Architecture& model, const char* format, int tp = 1) {
  const auto kv = FindKvFormat(format);
  return KvBytesPerToken({model, *kv, tp, 0, {0, model.num_layers}});
}

Architecture Of(const char* name) { return LoadModel(name)->architecture; }

TEST(KvBytes, GroupedHeadsOfLlama) {
  EXPECT_EQ(PerToken(Of("llama-3.1-8b"), "bf16"), 128 << 10);
  EXPECT_EQ(PerToken(Of("llama-3.1-70b"), "bf16"), 320 << 10);
  EXPECT_EQ(PerToken(Of("llama-3.1-405b"), "bf16"), 504 << 10);
  EXPECT_EQ(PerToken(Of("llama-2-7b"), "bf16"), 512 << 10);  // every head has its own
}

TEST(KvBytes, TensorParallelismSharesHeadsUntilItReplicatesThem) {
  const Architecture model = Of("llama-3.1-405b");
  EXPECT_EQ(PerToken(model, "bf16", 8), (504 << 10) / 8);
  EXPECT_EQ(PerToken(model, "bf16", 16), (504 << 10) / 8);  // twice in all
}

TEST(KvBytes, LatentIsWholeOnEveryRank) {
  // (512 + 64) x 2 bytes x 61 layers
  EXPECT_EQ(PerToken(Of("deepseek-v3"), "bf16"), 576 * 2 * 61);
  EXPECT_EQ(PerToken(Of("deepseek-v3"), "bf16", 8), 576 * 2 * 61);
}

TEST(KvBytes, QuantizedCountsItsScales) {
  const Architecture model = Of("llama-3.1-8b");  // 2 x 8 heads x 128 x 32 layers
  const int64_t vectors = 2 * 8 * 32;
  EXPECT_EQ(PerToken(model, "fp8"), vectors * 128);
  EXPECT_EQ(PerToken(model, "int8"), vectors * (128 + 2));
  EXPECT_EQ(PerToken(model, "int4"), vectors * (64 + 4 * 4));
  EXPECT_EQ(PerToken(model, "int2"), vectors * (32 + 4 * 4));
}

class KvOfRequest : public ::testing::Test {
 protected:
  int64_t Held(int64_t tokens) const {
    return KvBytesOfRequest({model_, kv_, 1, 0, {0, model_.num_layers}}, policy_, tokens, 16);
  }
  int64_t Read(int64_t tokens) const {
    return KvBytesReadPerStep({model_, kv_, 1, 0, {0, model_.num_layers}}, policy_, tokens);
  }
  Architecture model_ = Of("llama-3.1-8b");
  KvFormat kv_ = *FindKvFormat("bf16");
  KvPolicy policy_;
};

TEST_F(KvOfRequest, TakesWholeBlocks) {
  EXPECT_EQ(Held(1), 16 * (128 << 10));
  EXPECT_EQ(Held(131072), int64_t{16} << 30);
}

TEST_F(KvOfRequest, WindowBoundsItPerLayer) {
  model_.window_of_layer.assign(32, 0);
  for (int layer = 0; layer < 16; ++layer) model_.window_of_layer[layer] = 4096;
  EXPECT_EQ(Held(8192), (int64_t{8192} + 4096) * (64 << 10));
}

TEST_F(KvOfRequest, BudgetBoundsMemoryAndReadsQuestOnlyReads) {
  policy_.budget_tokens = 1024;
  EXPECT_EQ(Held(100000), 1024 * (128 << 10));
  EXPECT_EQ(Read(100000), 1024 * (128 << 10));
  policy_ = {.budget_tokens = 0, .read_tokens = 2048};
  EXPECT_EQ(Held(100000), int64_t{100000} * (128 << 10));
  EXPECT_EQ(Read(100000), 2048 * (128 << 10));
}

TEST_F(KvOfRequest, LayersThatShareHoldOnceAndReadEach) {
  model_.layers_per_kv = 2;
  EXPECT_EQ(Held(4096), 4096 * (64 << 10));
  EXPECT_EQ(Read(4096), 4096 * (128 << 10));
}

}  // namespace
}  // namespace lockstep::plan
