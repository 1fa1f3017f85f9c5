#include "deploy/plan/memory_plan.h"

#include "deploy/plan/catalog.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::plan {
namespace {

class Memory : public ::testing::Test {
 protected:
  void Use(const char* model, const char* gpu, const char* weights, const char* kv) {
    model_ = LoadModel(model)->architecture;
    gpu_ = *FindGpu(gpu);
    weights_ = *FindWeightFormat(weights);
    kv_ = *FindKvFormat(kv);
  }
  MemoryPlan Plan(const Layout& layout) const {
    return PlanMemory({model_, weights_, kv_, policy_, options_,
                       static_cast<int64_t>(gpu_.memory_gib * 0x1p30), request_tokens_},
                      layout);
  }
  static double GiB(int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

  Architecture model_;
  Gpu gpu_;
  WeightFormat weights_;
  KvFormat kv_;
  KvPolicy policy_;
  MemoryOptions options_;
  int64_t request_tokens_ = 2500;
};

// github.com/vllm-project/vllm pull request 10511 (2024-12-14): Meta-Llama-3-8B on an H100 of 79.22
// GiB at 0.90: weights 14.96 GiB, activations 1.26 GiB, 53.29 GiB for KV; with tp 2 7.48, 1.26 and
// 58.97 GiB (71.29 - 7.48 - 3.58 - 1.26).
TEST_F(Memory, MatchesPublishedStartOnH100) {
  Use("llama-3-8b", "h100", "bf16", "bf16");
  const MemoryPlan one = Plan({.tp = 1});
  EXPECT_NEAR(GiB(one.stages[0].weights.total()), 14.96, 0.01 * 14.96);
  EXPECT_NEAR(GiB(one.stages[0].activations), 1.26, 0.03 * 1.26);
  EXPECT_NEAR(GiB(one.stages[0].kv_budget), 53.29, 0.03 * 53.29);
  EXPECT_NEAR(static_cast<double>(one.num_kv_blocks), 53.29 * 512, 0.03 * 53.29 * 512);
  const MemoryPlan two = Plan({.tp = 2});
  EXPECT_NEAR(GiB(two.stages[0].weights.total()), 7.48, 0.01 * 7.48);
  EXPECT_NEAR(GiB(two.stages[0].kv_budget), 58.97, 0.03 * 58.97);
}

// github.com/vllm-project/vllm issue 6746 (2024-07-24): Meta's FP8 checkpoint of the 405B takes
// 57.75 GiB on each of eight GPUs.
TEST_F(Memory, MatchesPublishedWeightsOf405bFp8) {
  Use("llama-3.1-405b", "h100", "fp8-mlp", "bf16");
  EXPECT_NEAR(GiB(Plan({.tp = 8}).stages[0].weights.total()), 57.75, 0.03 * 57.75);
}

TEST_F(Memory, EveryByteOfTheGpuIsAccountedFor) {
  Use("llama-3.1-405b", "h100", "bf16", "bf16");
  for (const Layout& layout :
       {Layout{.tp = 8, .pp = 2}, Layout{.tp = 16}, Layout{.tp = 4, .pp = 3}}) {
    for (const StageMemory& stage : Plan(layout).stages) {
      EXPECT_EQ(stage.fixed() + stage.kv_budget, stage.capacity);
      EXPECT_LE(stage.kv_blocks_held * stage.kv_bytes_per_token * 16,
                std::max<int64_t>(0, stage.kv_budget));
    }
  }
}

TEST_F(Memory, FourHundredFiveBillionNeedsTwoNodesInBf16AndOneInFp8) {
  Use("llama-3.1-405b", "h100", "bf16", "bf16");
  EXPECT_FALSE(Plan({.tp = 8}).fits());
  EXPECT_TRUE(Plan({.tp = 8, .pp = 2}).fits());
  EXPECT_TRUE(Plan({.tp = 16}).fits());
  Use("llama-3.1-405b", "h100", "fp8", "bf16");
  EXPECT_TRUE(Plan({.tp = 8}).fits());
}

TEST_F(Memory, MoreContextNeverHoldsMoreRequests) {
  Use("llama-3.1-70b", "h100", "bf16", "bf16");
  int64_t before = INT64_MAX;
  for (request_tokens_ = 1; request_tokens_ <= 131072;
       request_tokens_ = request_tokens_ * 3 / 2 + 1) {
    const int64_t now = Plan({.tp = 4}).max_requests;
    EXPECT_LE(now, before) << request_tokens_;
    before = now;
  }
}

TEST_F(Memory, MoreGpusNeverHoldLess) {
  for (const char* name : {"llama-3.1-8b", "mixtral-8x7b", "deepseek-v2", "qwen3-30b-a3b"}) {
    Use(name, "h200", "fp8", "fp8");
    for (const int pp : {1, 2, 4}) {
      int64_t before = 0;
      for (const int tp : {1, 2, 4, 8}) {
        const Layout layout{.tp = tp, .pp = pp};
        if (!CheckModelLayout(model_, layout).ok()) continue;
        const int64_t now = Plan(layout).num_kv_blocks;
        EXPECT_GE(now, before) << name << " tp " << tp << " pp " << pp;
        before = now;
      }
    }
  }
}

TEST_F(Memory, TheLongestRequestFitsAndOneMoreTokenDoesNot) {
  Use("llama-3.1-8b", "rtx-4090", "bf16", "bf16");
  const int64_t longest = Plan({.tp = 1}).max_request_tokens;
  ASSERT_GT(longest, 1000);
  ASSERT_LT(longest, 131072);
  request_tokens_ = longest;
  EXPECT_EQ(Plan({.tp = 1}).max_requests, 1);
  request_tokens_ = longest + 1;
  EXPECT_EQ(Plan({.tp = 1}).max_requests, 0);
}

TEST_F(Memory, ExpertsAreSharedOutWholeOrSliced) {
  Use("mixtral-8x7b", "h100", "bf16", "bf16");
  const MemoryPlan sliced = Plan({.tp = 8});
  const MemoryPlan whole = Plan({.tp = 8, .expert_parallel = true});
  EXPECT_EQ(sliced.stages[0].weights.expert_bytes, whole.stages[0].weights.expert_bytes);
  // Eight experts are not divided by sixteen, but each of them is.
  const Architecture mixtral = LoadModel("mixtral-8x7b")->architecture;
  EXPECT_TRUE(CheckModelLayout(mixtral, {.tp = 16}).ok());
  EXPECT_THAT(std::string(CheckModelLayout(mixtral, {.tp = 16, .expert_parallel = true}).message()),
              ::testing::HasSubstr("8"));
}

}  // namespace
}  // namespace lockstep::plan
