#include "deploy/plan/planner.h"

#include "deploy/plan/layout_search.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

const Candidate* Find(const Plan& plan, int tp, int pp) {
  for (const Candidate& candidate : plan.candidates) {
    if (candidate.layout.tp == tp && candidate.layout.pp == pp) return &candidate;
  }
  return nullptr;
}

TEST(Planner, FourHundredFiveBillionInBf16TakesTwoNodesOfH100) {
  PlanRequest request = PricedRequest("llama-3.1-405b", "h100", "bf16");
  request.concurrency = 1;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_NE(plan->answer(), nullptr);
  EXPECT_EQ(plan->answer()->layout.tp, 8);
  EXPECT_EQ(plan->answer()->layout.pp, 2);
  EXPECT_EQ(plan->answer()->reserved_gpus, 16);
  const Candidate* node_groups = Find(*plan, 8, 2);
  const Candidate* across = Find(*plan, 16, 1);
  ASSERT_TRUE(node_groups != nullptr && node_groups->holds);
  ASSERT_TRUE(across != nullptr && across->holds);
  EXPECT_TRUE(across->tp_across_nodes);
  EXPECT_FALSE(Find(*plan, 8, 1)->holds);
  // Weights alone take 811.7 GB / 8 / 3.35 TB/s = 30.3 ms from one token to the next.
  EXPECT_GT(node_groups->prediction.tpot_ms, 30.0);
  EXPECT_LT(across->prediction.tpot_ms, node_groups->prediction.tpot_ms);
}

TEST(Planner, FourHundredFiveBillionInFp8TakesOneNodeOfH100) {
  PlanRequest request = PricedRequest("llama-3.1-405b", "h100", "fp8");
  request.concurrency = 16;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok() && plan->answer() != nullptr);
  EXPECT_EQ(plan->answer()->layout.gpus(), 7);
  EXPECT_EQ(plan->answer()->nodes, 1);
}

TEST(Planner, TriesEveryNumberOfStages) {
  PlanRequest request = PricedRequest("llama-3.1-405b", "h200", "bf16");
  request.concurrency = 16;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_EQ(plan.answer()->layout.gpus(), 7);
  EXPECT_EQ(plan.answer()->layout.pp, 7);
}

TEST(Planner, GroupsOfRanksAreNotSplitBetweenNodes) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  request.gpus_per_node = 6;
  request.tp = 4;
  request.pp = 1;
  request.concurrency = 1500;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  const Candidate& answer = *plan.answer();
  ASSERT_GT(answer.layout.replicas, 1);
  EXPECT_EQ(answer.nodes, answer.layout.replicas) << "two of six GPUs are left over";
  EXPECT_EQ(answer.reserved_gpus, 6 * answer.nodes);
  EXPECT_FALSE(answer.tp_across_nodes);
  request.pp = 3;
  request.max_nodes = 2;  // of twelve GPUs, which three groups of four would need
  EXPECT_THAT(std::string(MakePlan(request).status().message()),
              HasSubstr("tp 4 x pp 3 needs 12 GPUs; 8 are allowed"));
}

TEST(Planner, PowersOfTwoAreTriedWhereTheyLeaveGpusOver) {
  PlanRequest request = PricedRequest("llama-3.1-405b", "h100", "fp8");
  request.gpus_per_node = 10;
  request.concurrency = 8;
  request.tpot_p95_ms = 50;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr) << plan.binding_reason;
  EXPECT_EQ(plan.answer()->layout.tp, 8);
  EXPECT_EQ(plan.answer()->reserved_gpus, 8);
  EXPECT_NE(Find(plan, 5, 1), nullptr);
  EXPECT_EQ(Find(plan, 3, 1), nullptr);
}

TEST(Planner, WhereNothingHoldsTheNearestSaysWhyAndMoreNodesAreAdvisedFirst) {
  PlanRequest request = PricedRequest("llama-3.1-70b", "h100", "bf16");
  request.concurrency = 16384;
  Plan plan = *MakePlan(request);
  ASSERT_EQ(plan.answer(), nullptr);
  EXPECT_EQ(plan.binding, Constraint::kConcurrency);
  const auto most_held = [&](const Candidate& candidate) {
    return candidate.memory.max_requests * MostReplicas(request, candidate.layout, INT32_MAX);
  };
  for (const Candidate& candidate : plan.candidates) {
    EXPECT_LE(most_held(candidate), most_held(*Find(plan, 8, 16)));
  }
  EXPECT_THAT(plan.binding_reason, HasSubstr("tp 8 x pp 16: KV for "));
  ASSERT_FALSE(plan.relaxations.empty());
  const std::string advice = plan.relaxations[0].change;
  ASSERT_EQ(advice.substr(0, 8), "--nodes ");
  request.max_nodes = std::stoi(advice.substr(8));
  plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_EQ(plan.answer()->nodes, request.max_nodes);
  request.max_nodes -= 1;
  EXPECT_EQ(MakePlan(request)->answer(), nullptr);
}

// Requests that come and go have half of their answers on average: by Little's law the tokens that
// are held at any time, against those that the caches hold.
TEST(Planner, LongAnswersAtARateDoNotTakeCachesThatStayEmpty) {
  const PlanRequest request =
      AtRate(PricedRequest("llama-3.1-70b", "h100", "fp8"), 2, {2, 1000, 8000});
  SimulationBudget budget;
  const LayoutSearch search = SearchLayouts(request, budget);
  ASSERT_TRUE(search.chosen.has_value() && search.queue.has_value());
  const Candidate& answer = search.candidates[*search.chosen];
  const double seconds = (search.queue->ttft_mean_ms + 8000 * search.queue->tpot_mean_ms) / 1e3;
  const double held = request.rate_per_s * seconds * (1000 + 8000 / 2);
  const double capacity = static_cast<double>(answer.memory.num_kv_blocks) *
                          static_cast<double>(request.memory.block_size) * answer.layout.replicas;
  EXPECT_GT(held / capacity, 0.6);
  EXPECT_LT(held / capacity, 0.95);
  EXPECT_LT(search.queue->ttft_p95_ms, 500) << "they wait for each other's blocks";
  EXPECT_EQ(answer.replicas_for, Constraint::kConcurrency) << "it is memory that binds";
}

TEST(Planner, AnswersOfOneTokenHaveNoLimitBetweenTokens) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  request.output_tokens = 1;
  request.concurrency = 4;
  request.tpot_p95_ms = 0.001;
  const auto holds = [&] {
    const Plan plan = *MakePlan(request);
    return plan.answer() != nullptr && plan.answer()->layout.gpus() == 1 &&
           plan.answer()->prediction.tpot_ms == 0;
  };
  EXPECT_TRUE(holds());
  request.rate_per_s = 2;
  EXPECT_TRUE(holds());
}

TEST(Planner, SaysWhatBindsAndWhatWouldRelaxIt) {
  PlanRequest request = PricedRequest("llama-3.1-70b", "h100", "bf16");
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok() && plan->answer() != nullptr);
  EXPECT_EQ(plan->binding, Constraint::kConcurrency);
  ASSERT_FALSE(plan->relaxations.empty());
  EXPECT_LT(plan->relaxations[0].gpus, plan->answer()->reserved_gpus);
}

TEST(Planner, LimitsOfLatencyAreKept) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  request.concurrency = 200;
  const double free = MakePlan(request)->answer()->prediction.tpot_p95_ms;
  request.tpot_p95_ms = free / 2;
  const auto plan = MakePlan(request);
  ASSERT_NE(plan->answer(), nullptr);
  EXPECT_LE(plan->answer()->prediction.tpot_p95_ms, free / 2);
  EXPECT_GT(plan->answer()->layout.gpus(), 1);
  request.tpot_p95_ms = 0.01;
  EXPECT_EQ(MakePlan(request)->answer(), nullptr);
  EXPECT_EQ(MakePlan(request)->binding, Constraint::kTpot);
}

TEST(Planner, RateNeedsMoreReplicasThanOneServes) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  request.output_tokens = 100;
  request.rate_per_s = 1;
  const int few = MakePlan(request)->answer()->layout.gpus();
  request.rate_per_s = 200;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_GT(plan.answer()->layout.gpus(), few);
  // No more than twice what one replica serves when nothing but its speed counts.
  const double served =
      PredictReplica(request, *plan.answer(), 200).requests_per_s * plan.answer()->layout.replicas;
  EXPECT_LT(served, 2 * request.rate_per_s);
  EXPECT_NEAR(plan.answer()->prediction.requests_per_s * plan.answer()->layout.replicas, 200, 1);
}

// Every token of prompt and output passes all parameters but the embedding once.
double FlopsPerSecondOfAGpu(const PlanRequest& request, const Candidate& answer) {
  const double tokens_per_s = answer.prediction.output_tokens_per_s *
                              (1.0 + request.input_tokens / request.output_tokens) /
                              answer.layout.ranks();
  return 2.0 * static_cast<double>(request.model.architecture.num_active_parameters()) *
         tokens_per_s;
}

TEST(Planner, NoSpeedIsAboveWhatTheGpuMultiplies) {
  for (const char* gpu : {"a100", "rtx-4090", "h100", "b200"}) {
    for (const char* weights : {"f32", "bf16", "fp8", "int8", "int4", "nvfp4"}) {
      PlanRequest request = PricedRequest("llama-3.1-70b", gpu, weights);
      request.input_tokens = 2000;
      request.output_tokens = 10;
      request.concurrency = 256;
      const LayoutSearch search = SearchByFormula(request);
      ASSERT_TRUE(search.chosen.has_value()) << gpu << " " << weights;
      EXPECT_LT(FlopsPerSecondOfAGpu(request, search.candidates[*search.chosen]),
                request.gpu.FlopsOf(request.weights.operands))
          << gpu << " " << weights;
    }
  }
}

TEST(Planner, EightBitsSaveMemoryButNoArithmeticWhereTheGpuLacksThem) {
  const auto prompt_ms = [](const char* gpu, const char* weights) {
    PlanRequest request = PricedRequest("llama-3.1-8b", gpu, weights);
    request.input_tokens = 8000;  // bound by arithmetic
    request.concurrency = 1;
    request.tp = 1;
    request.pp = 1;
    return MakePlan(request)->answer()->prediction.ttft_ms;
  };
  EXPECT_NEAR(prompt_ms("a100", "fp8"), prompt_ms("a100", "bf16"),
              0.05 * prompt_ms("a100", "bf16"));
  EXPECT_LT(prompt_ms("a100", "int8"), 0.8 * prompt_ms("a100", "bf16"));
  EXPECT_LT(prompt_ms("h100", "fp8"), 0.8 * prompt_ms("h100", "bf16"));
}

TEST(Planner, RequestsThatDoNotDivideAreNotRoundedUp) {
  const auto plan = [](double concurrency) {
    PlanRequest request = PricedRequest("llama-3.1-70b", "h100", "bf16");
    request.tp = 1;
    request.pp = 2;
    request.concurrency = concurrency;
    return *MakePlan(request);
  };
  const Plan of_eight = plan(8);
  const Plan of_nine = plan(9);
  const Candidate& eight = *of_eight.answer();
  const Candidate& nine = *of_nine.answer();
  ASSERT_EQ(eight.layout.replicas, 3);
  ASSERT_EQ(nine.layout.replicas, 3);
  // Two replicas with three requests, one with two: as slow, fewer tokens, each of them dearer.
  EXPECT_EQ(eight.prediction.tpot_ms, nine.prediction.tpot_ms);
  EXPECT_NEAR(eight.output_tokens_per_s / nine.output_tokens_per_s, 8.0 / 9, 0.02);
  EXPECT_GT(*eight.usd_per_million_tokens, 1.1 * *nine.usd_per_million_tokens);
}

// Eleven groups of four hold the load, of six nodes, which have room for twelve.
TEST(Planner, NodesThatArePaidForAreUsed) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "l4", "bf16");
  request.concurrency = 700;
  request.tpot_p95_ms = 70;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  const Candidate& answer = *plan.answer();
  EXPECT_LT(answer.fewest_replicas, answer.layout.replicas);
  EXPECT_EQ(answer.layout.gpus(), answer.reserved_gpus);
  EXPECT_EQ(answer.load_per_replica, std::ceil(700.0 / answer.layout.replicas));
  EXPECT_THAT(plan.binding_reason,
              HasSubstr(std::to_string(answer.fewest_replicas) + " replicas, not "));
}

TEST(Planner, LargerLoadNeverNeedsFewerGpus) {
  PlanRequest request = PricedRequest("qwen3-30b-a3b", "a100", "bf16");
  int before = 0;
  for (request.concurrency = 1; request.concurrency < 3000; request.concurrency *= 3) {
    const auto plan = MakePlan(request);
    ASSERT_TRUE(plan.ok() && plan->answer() != nullptr) << request.concurrency;
    EXPECT_GE(plan->answer()->reserved_gpus, before);
    before = plan->answer()->reserved_gpus;
  }
}

TEST(Planner, RefusesNonsenseInOneLine) {
  const auto message = [](auto change) {
    PlanRequest request = PricedRequest("llama-3-8b", "h100", "bf16");
    change(request);
    const std::string text(MakePlan(request).status().message());
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text;
  };
  EXPECT_THAT(message([](PlanRequest& r) { r.max_nodes = 0; }), HasSubstr("nodes is 0"));
  EXPECT_THAT(message([](PlanRequest& r) { r.context = 9000; }),
              HasSubstr("exceeds the 8192 positions"));
  EXPECT_THAT(message([](PlanRequest& r) { r.context = 100; }), HasSubstr("exceed the context"));
  EXPECT_THAT(message([](PlanRequest& r) {
                r.input_tokens = 8000;
                r.output_tokens = 1000;
              }),
              HasSubstr("exceed the 8192 positions"));
  EXPECT_THAT(message([](PlanRequest& r) { r.expert_parallel = true; }),
              HasSubstr("llama-3-8b has no experts"));
  EXPECT_THAT(message([](PlanRequest& r) { r.tp = 3; }), HasSubstr("does not divide num_heads"));
  EXPECT_THAT(message([](PlanRequest& r) {
                r.tp = 8;
                r.pp = 32;
                r.max_nodes = 1;
              }),
              HasSubstr("needs 256 GPUs; 8 are allowed"));
  EXPECT_THAT(message([](PlanRequest& r) { r.pp = 300; }),
              HasSubstr("tp 1 x pp 300 needs 300 GPUs; 128 are allowed"));
  EXPECT_THAT(message([](PlanRequest& r) { r.rate_per_s = 1e-300; }), HasSubstr("rate is 1e-300"));
  EXPECT_THAT(message([](PlanRequest& r) { r.concurrency = std::nan(""); }),
              HasSubstr("concurrency is nan"));
}

TEST(Planner, EveryLayoutHasAVerdict) {
  for (const char* model : {"llama-3.1-405b", "deepseek-v3", "qwen2.5-0.5b"}) {
    const auto plan = MakePlan(PricedRequest(model, "h100", "fp8"));
    ASSERT_TRUE(plan.ok());
    EXPECT_GT(plan->candidates.size(), 10u);
    for (const Candidate& candidate : plan->candidates) {
      EXPECT_NE(candidate.holds, !candidate.reason.empty()) << candidate.reason;
    }
  }
}

}  // namespace
}  // namespace lockstep::plan
