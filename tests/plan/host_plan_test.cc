#include "deploy/plan/host_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/plan/hand_made_profile.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

// 2 layers; a layer's matrices have 64 * (64 + 32 + 32 + 64 + 3 * 128) = 36,864 weights.
constexpr char kConfig[] = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
  "max_position_embeddings": 1024, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
constexpr double kLayerBytes = 2 * 36864;
constexpr double kHeadBytes = 2 * 64 * 256;
constexpr double kKvBytesPerToken = 2 * 2 * 32 * 2;
// Norms are counted with the layers.
constexpr double kNear = 0.02;
constexpr HostLimits kLimits = {.num_kv_blocks = 1000};

class HostPlanTest : public ::testing::Test {
 protected:
  absl::StatusOr<HostCosts> Costs(int tp, int pp, const char* weights = "bf16") {
    weights_ = *FindWeightFormat(weights);
    return HostCosts::Create({model_, weights_, profile_, {.tp = tp, .pp = pp}, 1});
  }

  HostPlanRequest Request() {
    HostPlanRequest request;
    request.model = {"small", "a test", "", model_};
    request.weights = *FindWeightFormat("bf16");
    request.available_bytes = int64_t{1} << 30;
    request.max_model_len = 1024;
    request.cores = 2;
    request.arrivals = {.trace = {}, .rate_per_s = 0, .input_tokens = 64, .output_tokens = 32};
    request.profile = profile_;
    return request;
  }

  const Architecture model_ = *ParseArchitecture(kConfig);
  HostProfile profile_ = HandMadeProfile();
  WeightFormat weights_;
};

TEST_F(HostPlanTest, AStepCostsItsBytesAndItsOverheads) {
  const auto costs = Costs(1, 1);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const StepCost cost = costs->SlowestStage({.decodes = 1, .decode_context = 100});
  EXPECT_NEAR(cost.linear, 2 * kLayerBytes * 0.1e-9, kNear * cost.linear);
  EXPECT_DOUBLE_EQ(cost.lm_head, kHeadBytes * 0.1e-9);
  EXPECT_DOUBLE_EQ(cost.kv_read, 100 * kKvBytesPerToken / 2e9);
  EXPECT_DOUBLE_EQ(cost.overhead, (2 * 10 + 100 + 7) * 1e-6);
  EXPECT_EQ(cost.communication, 0);
}

TEST_F(HostPlanTest, APromptCostsItsAttention) {
  const auto costs = Costs(1, 1);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const StepCost cost = costs->SlowestStage({.prefill_tokens = 100, .prefill_start = 50});
  // Attention's output and the MLP of the last layer are the last token's alone.
  const double of_last_token = 2 * 64.0 * (64 + 3 * 128);
  EXPECT_NEAR(cost.linear, (2 * kLayerBytes - of_last_token) * 1e-9 + of_last_token * 0.1e-9,
              kNear * cost.linear);
  // Two products over 64 elements in each of 2 layers, of 100 tokens with 100 others on average.
  EXPECT_DOUBLE_EQ(cost.prefill_attention, 100.0 * 100 * 2 * 2 * 2 * 64 / 10e9);
}

TEST_F(HostPlanTest, TwoRanksHoldHalfAndAllReduce) {
  const auto costs = Costs(2, 1);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const StepCost cost = costs->SlowestStage({.decodes = 1, .decode_context = 100});
  EXPECT_NEAR(cost.linear, kLayerBytes * 0.2e-9, kNear * cost.linear);
  EXPECT_DOUBLE_EQ(cost.kv_read, 100 * kKvBytesPerToken / 2 / 1e9);
  // Two of a layer, of 64 numbers of 4 bytes.
  EXPECT_DOUBLE_EQ(cost.communication, 2 * 2 * 64 * 4 / 4e9);
}

TEST_F(HostPlanTest, ThePromptsOfRanksAndStagesLeaveTheLastLayer) {
  const double of_last_token = 2 * 64.0 * (64 + 3 * 128);
  const auto ranks = Costs(2, 1);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const StepLoad load{.prefill_tokens = 100};
  const StepCost cost = ranks->CostOf(0, load);
  EXPECT_NEAR(cost.linear, (kLayerBytes - of_last_token / 2) * 2e-9 + of_last_token / 2 * 0.2e-9,
              kNear * cost.linear);
  // Two of a layer, of 64 numbers of 4 bytes to a token.
  EXPECT_DOUBLE_EQ(cost.communication, 2 * (100 + 1) * 64 * 4 / 4e9);
  const auto stages = Costs(1, 2);
  ASSERT_TRUE(stages.ok()) << stages.status();
  EXPECT_NEAR(stages->CostOf(0, load).linear, kLayerBytes * 2e-9, kNear * cost.linear);
  EXPECT_NEAR(stages->CostOf(1, load).linear,
              (kLayerBytes - of_last_token) * 2e-9 + of_last_token * 0.2e-9, kNear * cost.linear);
}

TEST_F(HostPlanTest, StagesAreFasterOneAfterTheOther) {
  const auto costs = Costs(1, 2);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const double alone = costs->SumOfStages({.decodes = 1, .decode_context = 1, .active_stages = 1});
  const double both = costs->SumOfStages({.decodes = 1, .decode_context = 1, .active_stages = 2});
  // The serving of a step is paid once, by the last stage.
  const double serving = (100 + 7) * 1e-6;
  const double transfer = 64 * 4 / 5e9;
  // Those that take turns sleep meanwhile, and tokens return to the first stage.
  const double wake_up = 2 * 50e-6;
  EXPECT_LT(alone - wake_up, both);
  EXPECT_NEAR(both - serving - transfer, 2 * (alone - serving - transfer - wake_up), 1e-6);
}

TEST_F(HostPlanTest, AStageThatIsDoneLeavesTheMemoryToTheOthers) {
  const auto costs = Costs(1, 2);
  ASSERT_TRUE(costs.ok()) << costs.status();
  const StepLoad load{.decodes = 1, .decode_context = 1};
  // The last stage has the LM head besides, for which it is alone and twice as fast.
  const double first = costs->CostOf(0, load).total();
  const double last = costs->CostOf(1, load).total();
  ASSERT_GT(last, first);
  EXPECT_NEAR(costs->StageSeconds(0, load), first + 64 * 4 / 5e9, 1e-9);
  const double serving = (100 + 7) * 1e-6;  // takes as long for one as for two
  EXPECT_GT(costs->StageSeconds(1, load), first + 0.5 * (last - first));
  EXPECT_LT(costs->StageSeconds(1, load), first + 0.5 * (last - first) + serving);
}

TEST_F(HostPlanTest, QuantizedModelsHaveAnEightBitHead) {
  profile_.speeds.resize(1);
  profile_.speeds[0].formats.push_back(HandMadeFormat("int4", 3));
  const auto costs = Costs(1, 1, "int4");
  ASSERT_TRUE(costs.ok()) << costs.status();
  const double head = costs->SlowestStage({.decodes = 1, .decode_context = 1}).lm_head;
  EXPECT_LT(head, 0.6 * kHeadBytes * 0.1e-9);
}

TEST_F(HostPlanTest, RanksOnGpusHoldFp8WithAHeadIn16Bits) {
  profile_ = HandMadeGpuProfile();
  const auto costs = Costs(2, 1, "fp8");
  ASSERT_TRUE(costs.ok()) << costs.status();
  const StepCost cost = costs->SlowestStage({.decodes = 1, .decode_context = 100});
  EXPECT_NEAR(cost.linear, kLayerBytes / 2 / 3000e9, 0.1 * cost.linear);
  EXPECT_NEAR(cost.lm_head, kHeadBytes / 2 / 3000e9, 1e-15);
  EXPECT_NEAR(cost.overhead, (2 * 22 + 300 + 3) * 1e-6, 1e-12);
  EXPECT_EQ(cost.communication, 0) << "a token's all-reduces are part of its layers";
  EXPECT_EQ(Costs(1, 1, "int8").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostPlanTest, WhatWasNotMeasuredIsNamed) {
  const auto unknown_format = Costs(1, 1, "f32");
  ASSERT_FALSE(unknown_format.ok());
  EXPECT_EQ(unknown_format.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown_format.status().message()), HasSubstr("f32"));
  profile_.speeds.resize(1);
  const auto unknown_ranks = Costs(2, 1);
  ASSERT_FALSE(unknown_ranks.ok());
  EXPECT_THAT(std::string(unknown_ranks.status().message()), HasSubstr("several ranks"));
}

TEST_F(HostPlanTest, OneRequestTakesAStepPerToken) {
  const auto costs = Costs(1, 1);
  ASSERT_TRUE(costs.ok());
  const Load load{.input_tokens = 64, .output_tokens = 32, .concurrency = 1, .pattern = {}};
  const auto prediction =
      PredictOnHost({model_, *FindWeightFormat("bf16"), profile_, {}, 1}, load, kLimits);
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  const double step = costs->SlowestStage({.decodes = 1, .decode_context = 64 + 16}).total();
  EXPECT_NEAR(prediction->tpot_ms, step * 1e3, 1e-4);
  EXPECT_GT(prediction->ttft_ms, 3);
}

TEST_F(HostPlanTest, APromptWaitsForTheStepsThatAreUnderWay) {
  const WeightFormat weights = *FindWeightFormat("bf16");
  Load load{.input_tokens = 8, .output_tokens = 800, .concurrency = 1, .pattern = {}};
  const auto alone = PredictOnHost({model_, weights, profile_, {}, 1}, load, kLimits);
  load.concurrency = 4;
  const auto among_others = PredictOnHost({model_, weights, profile_, {}, 1}, load, kLimits);
  ASSERT_TRUE(alone.ok() && among_others.ok());
  EXPECT_GT(among_others->ttft_ms, alone->ttft_ms + 1.4 * alone->tpot_ms);
}

TEST_F(HostPlanTest, PlansWithoutAProfileTellMemoryOnly) {
  HostPlanRequest request = Request();
  request.profile.reset();
  const auto plan = MakeHostPlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->candidates.size(), 1u);
  EXPECT_GT(plan->answer().memory.num_kv_blocks, 0);
  EXPECT_FALSE(plan->answer().prediction);
  EXPECT_THAT(HostPlanText(*plan), HasSubstr("lockstep plan --calibrate"));
}

TEST_F(HostPlanTest, AContextThatIsAskedForMustHaveRoom) {
  HostPlanRequest request = Request();
  request.available_bytes = 300'000;
  ASSERT_TRUE(MakeHostPlan(request).ok()) << MakeHostPlan(request).status();
  request.needs_max_model_len = true;
  const absl::Status status = MakeHostPlan(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a context of 1024 tokens is longer than"));
  request.available_bytes = int64_t{1} << 30;
  EXPECT_TRUE(MakeHostPlan(request).ok());
}

TEST_F(HostPlanTest, MoreRanksMustBeWorthIt) {
  const auto plan = MakeHostPlan(Request());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->candidates.size(), 3u);  // one rank, two of a group, two stages
  EXPECT_EQ(plan->answer().layout.ranks(), 1);
  EXPECT_THAT(HostPlanText(*plan), HasSubstr("calibrated 2026-01-02 on elsewhere"));
  const auto json = nlohmann::json::parse(HostPlanJson(*plan));
  EXPECT_EQ(json["sources"]["speed"], "calibrated 2026-01-02 on elsewhere");
  EXPECT_DOUBLE_EQ(json["tpot_ms"].get<double>(), plan->answer().prediction->tpot_ms);
}

TEST_F(HostPlanTest, ARareRequestIsServedLikeOneAlone) {
  HostPlanRequest request = Request();
  const HostPlan alone = *MakeHostPlan(request);
  request.arrivals.rate_per_s = 0.01;
  const auto plan = MakeHostPlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->answer().queue.has_value());
  EXPECT_NEAR(plan->answer().queue->tpot_p50_ms, alone.answer().prediction->tpot_ms, 1e-3);
  EXPECT_NEAR(plan->answer().queue->ttft_p50_ms, alone.answer().prediction->ttft_ms, 1e-3);
  EXPECT_THAT(HostPlanText(*plan), HasSubstr("0.01 requests/s of 64 tokens in"));
}

TEST_F(HostPlanTest, ARateBeyondTheHostIsCalledSo) {
  HostPlanRequest request = Request();
  request.arrivals.rate_per_s = 1e4;
  const auto plan = MakeHostPlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->answer().broken, HasSubstr("requests/s at most"));
  EXPECT_LT(plan->answer().prediction->requests_per_s, 1e4);
  EXPECT_EQ(nlohmann::json::parse(HostPlanJson(*plan))["holds"], false);
}

TEST_F(HostPlanTest, LimitsChooseTheLayoutThatHoldsThem) {
  HostPlanRequest request = Request();
  const HostPlan free = *MakeHostPlan(request);
  request.tpot_p95_ms = 0.5 * free.answer().prediction->tpot_ms;
  const HostPlan bound = *MakeHostPlan(request);
  EXPECT_THAT(bound.answer().broken, HasSubstr("TPOT p95"));
}

}  // namespace
}  // namespace lockstep::plan
