#include "deploy/plan/latency.h"

#include "deploy/plan/planner.h"
#include "deploy/plan/roofline.h"
#include "deploy/plan/stage_work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

// A step takes 1 ms, one with prompts 10 ms however many tokens they have.
class FlatCosts : public StageCosts {
 public:
  int num_stages() const override { return 1; }
  StepCost SlowestStage(const StepLoad& load) const override {
    StepCost cost;
    cost.overhead = load.prefill_tokens > 0 ? 10e-3 : 1e-3;
    return cost;
  }
  double StageSeconds(int, const StepLoad& load) const override { return SumOfStages(load); }
  double SumOfStages(const StepLoad& load) const override { return SlowestStage(load).total(); }
};

Prediction OfRequests(double concurrency, double input, double output) {
  EngineProfile engine;
  engine.request_ms = 0;
  return Predict(FlatCosts(), engine, {input, output, concurrency, {}}, 1 << 20);
}

TEST(Latency, ShortPromptsShareSteps) {
  // Ten requests end and start in every step: none takes longer than one with prompts.
  EXPECT_LE(OfRequests(1000, 100, 101).tpot_ms, 10.0);
  EXPECT_GE(OfRequests(1000, 100, 101).tpot_ms, 9.0);
  // One in a hundred steps has a prompt, and 9 in 10 of those meet the other request's decodes.
  EXPECT_NEAR(OfRequests(2, 100, 101).tpot_ms, 1.0 + 0.9 * 0.09, 0.01);
}

TEST(Latency, TheSlowestAreNoFasterThanTheMean) {
  for (double concurrency = 1e-3; concurrency < 100; concurrency *= 1.5) {
    const Prediction prediction = OfRequests(concurrency, 100, 101);
    EXPECT_GE(prediction.tpot_p95_ms, prediction.tpot_ms) << concurrency;
    EXPECT_GE(prediction.ttft_p95_ms, prediction.ttft_ms) << concurrency;
    // Alone, a token takes a step.
    EXPECT_GE(prediction.tpot_ms, 1.0 - 1e-9) << concurrency;
  }
}

// A prompt of thirteen steps beside one answer of ten tokens.
TEST(Latency, ALoneRequestDoesNotWaitForItself) {
  EXPECT_NEAR(OfRequests(1, 100000, 10).ttft_ms, 130.0, 1e-3);
  EXPECT_NEAR(OfRequests(1, 100000, 10).ttft_p95_ms, 130.0, 1e-3);
  EXPECT_GT(OfRequests(2, 100000, 10).ttft_ms, 130.0 + 10.0);
}

// Prompts of 4,096 tokens, two to a step of 10 ms.
TEST(Latency, AnswersOfOneTokenHaveNoTimeBetweenTokens) {
  const Prediction alone = OfRequests(1, 4096, 1);
  EXPECT_EQ(alone.tpot_ms, 0);
  EXPECT_EQ(alone.tpot_p95_ms, 0);
  EXPECT_NEAR(alone.ttft_ms, 10.0, 1e-9);
  EXPECT_NEAR(alone.requests_per_s, 100.0, 1e-6);
  EXPECT_NEAR(OfRequests(8, 4096, 1).ttft_ms, 40.0, 1e-6);
  EXPECT_NEAR(OfRequests(8, 4096, 1).requests_per_s, 200.0, 1e-6);
}

// A prompt to a step of 10 ms, 80 a second: M/D/1 has them wait 0.8 / 2 / 0.2 steps, and by
// Little's law 2.4 are there.
TEST(Latency, AnswersOfOneTokenThatArriveWait) {
  EngineProfile engine;
  engine.request_ms = 0;
  Load load{8192, 1, 2.4, {}};
  load.arrives = true;
  const Prediction queue = Predict(FlatCosts(), engine, load, 1 << 20);
  EXPECT_NEAR(queue.requests_per_s, 80.0, 1e-3);
  EXPECT_NEAR(queue.ttft_ms, 10.0 + 20.0, 1e-3);
  EXPECT_NEAR(queue.ttft_p95_ms, 10.0 + 3 * 20.0, 1e-3);
  load.concurrency = 1e-6;
  EXPECT_NEAR(Predict(FlatCosts(), engine, load, 1 << 20).ttft_p95_ms, 10.0, 1e-3);
}

TEST(Latency, NoMoreRunThanAStepHasTokensFor) {
  EXPECT_NEAR(OfRequests(20000, 100, 101).requests_per_s, OfRequests(8192, 100, 101).requests_per_s,
              1e-6);
}

TEST(Latency, LongPromptsHaveStepsOfTheirOwn) {
  // 8,192 tokens are a step's all: ten prompts take ten steps.
  EXPECT_GT(OfRequests(1000, 8192, 101).tpot_ms, 5 * OfRequests(1000, 100, 101).tpot_ms);
}

// An 8b: attention of 41.9 million weights in each of 32 layers, MLPs of 176 million, those of the
// first and last layer in 16 bits.
TEST(StageWork, CountsWhatStaysIn16BitsBesideNarrowerWeights) {
  const Architecture model = LoadModel("llama-3.1-8b")->architecture;
  const auto work = [&](const char* format) {
    return WorkOfStages(model, *FindWeightFormat(format), Layout{}).front();
  };
  constexpr double kAttention = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024;
  constexpr double kMlp = 3.0 * 4096 * 14336;
  constexpr double kFlops = 2.0 * 32 * (kAttention + kMlp);
  for (const char* format : {"bf16", "fp8", "fp8-mlp"}) {
    EXPECT_DOUBLE_EQ(work(format).linear_flops, kFlops) << format;
  }
  EXPECT_EQ(work("fp8").wide_flops, 0);
  EXPECT_DOUBLE_EQ(work("bf16").wide_flops, kFlops);
  EXPECT_DOUBLE_EQ(work("fp8-mlp").wide_flops, 2.0 * (32 * kAttention + 2 * kMlp));
  // Of the last layer attention's output and an MLP in 16 bits.
  EXPECT_DOUBLE_EQ(work("fp8-mlp").logits_only.wide_flops, 2.0 * (4096.0 * 4096 + kMlp));
  EXPECT_EQ(work("fp8").logits_only.wide_flops, 0);
}

Roofline OneGpu(const PlanRequest& request) {
  return Roofline({request.model.architecture,
                   request.weights,
                   request.kv,
                   request.policy,
                   request.gpu,
                   request.engine,
                   {},
                   1});
}

TEST(Roofline, PromptsTakeTheLongerTheMoreIsMultipliedIn16Bits) {
  const auto seconds = [](const char* format) {
    const PlanRequest request = RequestFor("llama-3.1-8b", "h100", format);
    return OneGpu(request).SlowestStage({.prefill_tokens = 8192}).linear;
  };
  // Attention is 19.2 % of the products, the MLPs of two layers another 5 %.
  const double of_bf16 = seconds("bf16") / seconds("fp8");
  EXPECT_GT(of_bf16, 1.4);
  EXPECT_NEAR(seconds("fp8-mlp") / seconds("fp8"), 1.0 + 0.242 * (of_bf16 - 1.0), 0.01);
}

TEST(Roofline, PromptsAttendToNoMoreThanAWindow) {
  PlanRequest request = RequestFor("mistral-7b-v0.1");
  const auto seconds = [&](double start) {
    return OneGpu(request)
        .SlowestStage({.prefill_tokens = 2048, .prefill_start = start})
        .prefill_attention;
  };
  // Its window is 4,096 tokens: of positions 3,072 to 5,120 half are in full, (3,584 + 4,096) / 2.
  EXPECT_NEAR(seconds(8192) / seconds(0), 4096.0 / 1024, 1e-9);
  EXPECT_NEAR(seconds(20480), seconds(8192), 1e-12);
  EXPECT_NEAR(seconds(3072) / seconds(0), 3840.0 / 1024, 1e-9);
  // In every other layer.
  for (size_t i = 0; i < request.model.architecture.window_of_layer.size(); i += 2) {
    request.model.architecture.window_of_layer[i] = 0;
  }
  EXPECT_NEAR(seconds(8192) / seconds(0), (4096.0 + 9216.0) / 2 / 1024, 1e-9);
}

struct Pipeline {
  const char* model;
  int tp;
  int pp;
  double input;
  double output;
};

// Each prompt holds up every stage in turn.
class Pipelines : public ::testing::TestWithParam<Pipeline> {};

TEST_P(Pipelines, AreAsFastAsTheirSimulation) {
  const auto [model, tp, pp, input, output] = GetParam();
  PlanRequest request = RequestFor(model);
  request.input_tokens = input;
  request.output_tokens = output;
  int num_compared = 0;
  for (const double concurrency : {1, 2, 4, 8, 16, 30, 64, 128, 256}) {
    request.concurrency = concurrency;
    const Candidate candidate = Judge(request, tp, pp);
    // Some outputs are half longer than the mean.
    if (candidate.memory.max_requests < 1.5 * concurrency) break;
    const Roofline costs({request.model.architecture, request.weights, request.kv, request.policy,
                          request.gpu, request.engine, candidate.layout, 8});
    const SimulatedReplica replica{.costs = costs,
                                   .num_kv_blocks = candidate.memory.num_kv_blocks,
                                   .max_batched_tokens = request.engine.max_batched_tokens,
                                   .max_model_len = candidate.memory.max_request_tokens,
                                   .request_ms = request.engine.request_ms};
    const Load load{input, output, concurrency, {}};
    const Prediction formula = Predict(costs, request.engine, load, candidate.memory.max_requests);
    const QueueResult loop = SimulateClosedLoop(replica, load);
    EXPECT_NEAR(formula.tpot_ms / loop.tpot_mean_ms, 1.0, 0.1) << concurrency;
    EXPECT_NEAR(formula.tpot_p95_ms / loop.tpot_p95_ms, 1.0, 0.15) << concurrency;
    ++num_compared;
  }
  EXPECT_GE(num_compared, 5);
}

INSTANTIATE_TEST_SUITE_P(Models, Pipelines,
                         ::testing::Values(Pipeline{"llama-3.1-70b", 4, 1, 2000, 500},
                                           Pipeline{"llama-3.1-70b", 2, 2, 2000, 500},
                                           Pipeline{"llama-3.1-70b", 1, 3, 2000, 500},
                                           Pipeline{"llama-3.1-70b", 1, 4, 200, 200},
                                           Pipeline{"llama-3.1-70b", 1, 8, 16000, 300},
                                           Pipeline{"llama-3.1-70b", 2, 8, 500, 2000},
                                           Pipeline{"llama-3.1-405b", 8, 2, 2000, 500},
                                           Pipeline{"llama-3.1-405b", 8, 16, 2000, 500}));

class Experts : public ::testing::Test {
 protected:
  StepCost DecodesOf(const char* model, int tp, double decodes, const char* gpu = "h200") const {
    const Architecture architecture = LoadModel(model)->architecture;
    const WeightFormat weights = *FindWeightFormat("fp8");
    const KvFormat kv = *FindKvFormat("bf16");
    const KvPolicy policy;
    const Gpu hardware = *FindGpu(gpu);
    const Roofline roofline({architecture, weights, kv, policy, hardware, engine_, {.tp = tp}, 8});
    return roofline.CostOf(0, {.decodes = decodes, .decode_context = 4096});
  }

  EngineProfile engine_ = *FindEngine("vllm");
};

TEST_F(Experts, AreReadOnceTheirTokensComeAndNeverTwice) {
  const double one = DecodesOf("deepseek-v3", 8, 1).linear;
  const double many = DecodesOf("deepseek-v3", 8, 64).linear;
  const double all = DecodesOf("deepseek-v3", 8, 4096).linear;
  EXPECT_LT(one, many);
  // 8 of 256 experts, and what every token passes.
  EXPECT_LT(one, 0.1 * all);
  EXPECT_LT(DecodesOf("deepseek-v3", 8, 256).linear, 1.05 * all);
}

TEST_F(Experts, TokensThatChooseAlikeReadLess) {
  engine_.routing_spread = 1.0;
  const double apart = DecodesOf("qwen3-235b-a22b", 8, 16).linear;
  engine_.routing_spread = 0.7;
  EXPECT_LT(DecodesOf("qwen3-235b-a22b", 8, 16).linear, apart);
}

TEST_F(Experts, LayersWithExpertsAndLatentsTakeTheirOverheads) {
  const double before = DecodesOf("deepseek-v3", 8, 1).overhead;
  engine_.moe_layer_us += 100;
  EXPECT_NEAR(DecodesOf("deepseek-v3", 8, 1).overhead - before, 58 * 100e-6, 1e-9)
      << "the first 3 of 61 layers have none";
  engine_.latent_layer_us += 100;
  EXPECT_NEAR(DecodesOf("deepseek-v3", 8, 1).overhead - before, (58 + 61) * 100e-6, 1e-9);
  EXPECT_NEAR(DecodesOf("llama-3.1-8b", 1, 1).overhead,
              (32 * engine_.layer_us + engine_.step_us + engine_.sequence_us) * 1e-6, 1e-9);
}

// 128 heads read one latent of 1,152 bytes: 242 operations for every byte of it.
TEST_F(Experts, LatentsOfAllHeadsTakeLongerToMultiplyThanToRead) {
  const double whole = DecodesOf("deepseek-v3", 1, 64).kv_read;
  const double eighth = DecodesOf("deepseek-v3", 8, 64).kv_read;
  EXPECT_GT(whole, 1.3 * eighth) << "as many bytes, but eight times the heads";
}

// Seven links of 64 GB/s, of which two GPUs share one, four three.
TEST(Links, OfAMeshOnlyThoseOfAGroupCarry) {
  const double bytes = 1 << 30;
  const Interconnect mesh = InterconnectOf(*FindGpu("mi300x"), 8);
  // Two GPUs send each other all of it, of four each two passes of three quarters.
  EXPECT_NEAR(AllReduceSeconds(mesh, 2, bytes), bytes / (0.6 * 64e9), 1e-3);
  EXPECT_NEAR(AllReduceSeconds(mesh, 4, bytes), 1.5 * bytes / (0.6 * 3 * 64e9), 1e-3);
  EXPECT_NEAR(AllReduceSeconds(mesh, 8, bytes), 1.75 * bytes / (0.6 * 7 * 64e9), 1e-3);
  EXPECT_NEAR(TransferSeconds(mesh, false, bytes), bytes / (0.6 * 64e9), 1e-3);
}

TEST(Links, JoinNodesOrHalvesOfThem) {
  const double bytes = 1 << 20;
  const Interconnect nvl72 = InterconnectOf(*FindGpu("gb200"), 4);
  const Interconnect b200 = InterconnectOf(*FindGpu("b200"), 8);
  EXPECT_EQ(AllReduceSeconds(nvl72, 8, bytes), AllReduceSeconds(b200, 8, bytes));
  const Interconnect pairs = InterconnectOf(*FindGpu("h100-nvl"), 8);
  const Interconnect pcie = InterconnectOf(*FindGpu("h100-pcie"), 8);
  EXPECT_LT(AllReduceSeconds(pairs, 2, bytes), AllReduceSeconds(pcie, 2, bytes));
  EXPECT_EQ(AllReduceSeconds(pairs, 4, bytes), AllReduceSeconds(pcie, 4, bytes));
}

}  // namespace
}  // namespace lockstep::plan
