#include "deploy/plan/queue_simulation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "deploy/plan/layout_search.h"
#include "deploy/plan/planner.h"
#include "deploy/plan/relaxations.h"
#include "deploy/plan/replica_queue.h"
#include "deploy/plan/report.h"
#include "deploy/plan/roofline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PlanRequest Request(double rate) {
  PlanRequest request = RequestFor();
  request.max_nodes = 1;
  request.rate_per_s = rate;
  return request;
}

TEST(QueueSimulation, AQuietQueueIsTheFormula) {
  const auto plan = MakePlan(Request(0.2));
  ASSERT_TRUE(plan.ok() && plan->answer() != nullptr && plan->queue.has_value());
  EXPECT_GT(plan->queue->num_requests, 15);
  EXPECT_NEAR(plan->queue->tpot_p50_ms, plan->answer()->prediction.tpot_ms,
              0.15 * plan->answer()->prediction.tpot_ms);
  EXPECT_NEAR(plan->queue->ttft_p50_ms, plan->answer()->prediction.ttft_ms,
              0.35 * plan->answer()->prediction.ttft_ms);
}

// Prompts that hold up who decodes, up to half of the time, and few of them or many.
TEST(QueueSimulation, TokensAreHeldUpAsTheFormulaSays) {
  for (const SteadyRequests& each :
       {SteadyRequests{1, 16000, 100}, {1.5, 8000, 400}, {5, 2000, 500}, {20, 500, 200}}) {
    PlanRequest request = AtRate(RequestFor(), 1, each);
    request.max_nodes = request.gpus_per_node = 1;
    const Plan plan = *MakePlan(request);
    ASSERT_TRUE(plan.answer() != nullptr && plan.queue.has_value()) << each.input_tokens;
    const Prediction& formula = plan.answer()->prediction;
    EXPECT_NEAR(formula.tpot_ms / plan.queue->tpot_mean_ms, 1.0, 0.12) << each.input_tokens;
    // What is above it in the queue is refused there; what is below must not be refused before.
    EXPECT_LT(formula.tpot_p95_ms, 1.05 * plan.queue->tpot_p95_ms) << each.input_tokens;
    EXPECT_GT(formula.tpot_p95_ms, 0.7 * plan.queue->tpot_p95_ms) << each.input_tokens;
  }
}

TEST(QueueSimulation, PromptsWaitAsTheFormulaSays) {
  PlanRequest request = RequestFor();
  request.tp = 1;
  request.pp = 1;
  request.max_nodes = 1;
  request.gpus_per_node = 1;
  request.output_tokens = 1;
  for (const auto& [input, rate] : {std::pair{2000, 5}, {2000, 10}, {2000, 20}, {200, 200}}) {
    request.input_tokens = input;
    request.rate_per_s = rate;
    const Plan plan = *MakePlan(request);
    ASSERT_TRUE(plan.answer() != nullptr && plan.queue.has_value()) << rate;
    EXPECT_NEAR(plan.answer()->prediction.ttft_ms / plan.queue->ttft_mean_ms, 1.0, 0.15) << rate;
  }
}

TEST(QueueSimulation, MoreRequestsNeverWaitLess) {
  const Plan plan = *MakePlan(Request(0.2));
  double before = 0;
  for (const double rate : {0.5, 2.0, 6.0}) {
    const QueueResult result = SimulateReplica(plan.request, *plan.answer(),
                                               PoissonArrivals(rate, 2000, 100, 7).First(100));
    EXPECT_GE(result.ttft_p95_ms, 0.95 * before);  // they meet other steps, too
    before = result.ttft_p95_ms;
  }
}

// As lockstep bench takes them of what it measures.
TEST(QueueSimulation, QuantilesInterpolate) {
  const Plan plan = *MakePlan(Request(0.2));
  const QueueResult result =
      SimulateReplica(plan.request, *plan.answer(), PoissonArrivals(100, 2000, 10, 7).First(2));
  ASSERT_EQ(result.num_requests, 2);
  EXPECT_GT(result.ttft_p95_ms, result.ttft_p50_ms);
  EXPECT_NEAR(result.ttft_p50_ms, result.ttft_mean_ms, 1e-9);
}

TEST(QueueSimulation, TheSameSeedGivesTheSameNumbers) {
  const Plan plan = *MakePlan(Request(2));
  const std::vector<Arrival> arrivals = PoissonArrivals(2, 500, 50, 3).First(50);
  EXPECT_EQ(SimulateReplica(plan.request, *plan.answer(), arrivals).ttft_p95_ms,
            SimulateReplica(plan.request, *plan.answer(), arrivals).ttft_p95_ms);
}

// Not while a queue is still filling: a busy replica's requests meet a hundred others.
TEST(QueueSimulation, ALoadThatGoesOnIsMeasuredWhenAsManyRunAsAlwaysWill) {
  PlanRequest request = Request(15);
  request.input_tokens = 1000;
  request.output_tokens = 250;
  request.ttft_p95_ms = 1e5;
  const Plan plan = *MakePlan(request);
  ASSERT_TRUE(plan.answer() != nullptr && plan.queue.has_value());
  const double rate = request.rate_per_s / plan.answer()->layout.replicas;
  const auto tpot = [&](int count) {
    return SimulateReplica(plan.request, *plan.answer(),
                           PoissonArrivals(rate, 1000, 250, 7).First(count))
        .tpot_p50_ms;
  };
  const double in_the_long_run = tpot(5000);
  EXPECT_NEAR(plan.queue->tpot_p50_ms, in_the_long_run, 0.05 * in_the_long_run);
  EXPECT_LT(tpot(60), 0.85 * in_the_long_run) << "they never fill it";
}

// 120 run at the same time, each of them eight minutes.
TEST(QueueSimulation, ALoadOfLongAnswersIsSteady) {
  PlanRequest request = Request(4);
  request.input_tokens = 100;
  request.output_tokens = 2000;
  const Plan plan = *MakePlan(request);
  ASSERT_TRUE(plan.answer() != nullptr && plan.queue.has_value());
  EXPECT_EQ(plan.answer()->layout.gpus(), 1);
  EXPECT_TRUE(plan.queue->is_steady);
  EXPECT_EQ(plan.queue->num_requests, 500);
}

TEST(QueueSimulation, ArrivalsKeepTheirRateInEveryWindow) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const std::vector<Arrival> arrivals = PoissonArrivals(8, 1, 1, seed).First(2001);
    double squares = 0;
    for (size_t i = 0; i < 2000; ++i) {
      squares += std::pow(8 * (arrivals[i + 1].seconds - arrivals[i].seconds), 2);
    }
    for (size_t i = 0; i < 2000; i += 250) {
      EXPECT_NEAR(arrivals[i + 250].seconds - arrivals[i].seconds, 250.0 / 8, 1e-6) << seed;
    }
    // Of exponential gaps the square is twice that of the mean.
    EXPECT_NEAR(squares / 2000, 2.0, 0.3) << seed;
  }
}

// At 7 in 8 of what it serves at most.
TEST(QueueSimulation, SeedsDifferLittle) {
  const PlanRequest request = RequestFor("llama-3.1-70b");
  const Candidate candidate = Judge(request, 8, 1);
  const Roofline costs({request.model.architecture, request.weights, request.kv, request.policy,
                        request.gpu, request.engine, candidate.layout, 8});
  const SimulatedReplica replica{.costs = costs,
                                 .num_kv_blocks = candidate.memory.num_kv_blocks,
                                 .max_batched_tokens = request.engine.max_batched_tokens,
                                 .max_model_len = 2500};
  double least = 1e9;
  double most = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const QueueResult queue = SimulateSteadyQueue(replica, {7, 2000, 500, 149, seed});
    least = std::min(least, queue.tpot_p50_ms);
    most = std::max(most, queue.tpot_p50_ms);
  }
  EXPECT_LT(most, 1.1 * least);
}

// Up to 7 in 8 of what it serves at most.
TEST(QueueSimulation, MoreRequestsASecondAreNeverFaster) {
  PlanRequest request = RequestFor("llama-3.1-70b");
  request.tp = 8;
  request.pp = 1;
  request.max_nodes = 1;
  double before = 0;
  for (request.rate_per_s = 6; request.rate_per_s <= 7.5; request.rate_per_s += 0.5) {
    const Plan plan = *MakePlan(request);
    ASSERT_TRUE(plan.answer() != nullptr && plan.queue.has_value()) << request.rate_per_s;
    EXPECT_EQ(plan.queue->num_requests, 1000) << request.rate_per_s;
    EXPECT_GT(plan.queue->tpot_p50_ms, before) << request.rate_per_s;
    EXPECT_GT(plan.queue->tpot_p95_ms, plan.queue->tpot_p50_ms) << request.rate_per_s;
    before = plan.queue->tpot_p50_ms;
  }
}

TEST(QueueSimulation, MoreThanAReplicaServesIsNoSteadyLoad) {
  PlanRequest request = Request(2);
  request.ttft_p95_ms = 1e5;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_TRUE(plan.queue->is_steady);
  for (const double too_much : {20, 100, 10000}) {
    request.rate_per_s = too_much;
    const QueueResult result = SimulateReplica(request, *plan.answer());
    EXPECT_FALSE(result.is_steady) << too_much;
    EXPECT_GT(result.num_requests, 0) << too_much;
    EXPECT_THAT(QueueText(result), HasSubstr("still filling up"));
  }
}

// With windows of 4,096 tokens it holds requests of 30,500, without them none.
TEST(QueueSimulation, RunsAsManyAsWindowsLeaveRoomFor) {
  PlanRequest request = RequestFor("mistral-7b-v0.1", "l4");
  request.tp = 1;
  request.pp = 1;
  request.memory.utilization = 0.85;
  request.input_tokens = 30000;
  request.rate_per_s = 1.0 / 60;
  const Plan tight = *MakePlan(request);
  ASSERT_NE(tight.answer(), nullptr);
  EXPECT_LT(tight.answer()->memory.num_kv_blocks * 16, 30500);
  request.gpu.memory_gib *= 10;
  const Plan ample = *MakePlan(request);
  ASSERT_NE(ample.answer(), nullptr);
  EXPECT_TRUE(tight.queue->is_steady);
  EXPECT_EQ(tight.queue->num_preemptions, 0u);
  EXPECT_NEAR(tight.queue->ttft_p95_ms, ample.queue->ttft_p95_ms, 1e-6);
}

TEST(QueueSimulation, EndsWhenTheEngineRefusesWhatComes) {
  const PlanRequest request = Request(1);
  Candidate candidate = Judge(request, 1, 1);
  candidate.memory.max_request_tokens = 100;
  EXPECT_FALSE(SimulateReplica(request, candidate).is_steady);
}

TEST(QueueSimulation, RunsAsManyAsAStepHasTokensFor) {
  PlanRequest request = RequestFor("llama-3.2-1b", "b200");
  request.rate_per_s = 1700;
  request.input_tokens = 50;
  request.output_tokens = 50;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_EQ(plan.answer()->layout.gpus(), 1);
  EXPECT_GT(MaxNumSeqs(plan.request, *plan.answer()), 1024);
  EXPECT_LT(plan.queue->ttft_p50_ms, 2 * plan.answer()->prediction.ttft_ms) << "nobody waits";
  Candidate busy = *plan.answer();
  busy.load_per_replica = 1e6;
  EXPECT_EQ(MaxNumSeqs(plan.request, busy), plan.request.engine.max_batched_tokens);
}

// tp 1 x pp 3 takes long until a first token, however few requests a replica has; tp 4 does not.
TEST(QueueSimulation, ALayoutThatNeedsReplicasLeavesOthersAlone) {
  PlanRequest request = RequestFor("llama-3.1-70b");
  request.rate_per_s = 1;
  request.ttft_p95_ms = 500;
  SimulationBudget budget;
  const LayoutSearch search = SearchLayouts(request, budget);
  ASSERT_TRUE(search.chosen.has_value());
  EXPECT_EQ(search.candidates[*search.chosen].layout.tp, 4);
  EXPECT_EQ(search.candidates[*search.chosen].layout.gpus(), 4);
  EXPECT_LE(search.queue->ttft_p95_ms, 500);
}

TEST(QueueSimulation, WhatNoQueueHoldsIsNoAnswer) {
  PlanRequest request = RequestFor("llama-3.1-405b", "h100", "fp8");
  request.max_nodes = 1;
  request.rate_per_s = 1;
  request.ttft_p95_ms = 500;
  const Plan plan = *MakePlan(request);
  EXPECT_EQ(plan.answer(), nullptr);
  EXPECT_FALSE(plan.queue.has_value());
  EXPECT_EQ(plan.binding, Constraint::kTtft);
  EXPECT_THAT(plan.binding_reason, HasSubstr("TTFT p95 above 500 ms in a simulated queue"));
  EXPECT_THAT(PlanText(plan), HasSubstr("none within 1 node of 8: time to first token"));
}

// A prompt alone takes as long on however many replicas.
TEST(QueueSimulation, WhatNoNumberOfReplicasHoldsIsNoAnswer) {
  PlanRequest request = RequestFor("llama-3.1-70b");
  request.tp = 1;
  request.pp = 3;
  request.rate_per_s = 1;
  request.ttft_p95_ms = 405;
  ASSERT_TRUE(SearchByFormula(request).chosen.has_value());
  SimulationBudget budget;
  const LayoutSearch search = SearchLayouts(request, budget);
  EXPECT_FALSE(search.chosen.has_value());
  EXPECT_THAT(search.candidates[0].reason,
              HasSubstr("even with 42 replicas: TTFT p95 above 405 ms"));
  request.ttft_p95_ms = 500;
  request.output_tokens = 100;
  EXPECT_TRUE(SearchLayouts(request, budget).chosen.has_value());
}

TEST(QueueSimulation, ThePrintedQueueIsTheAnswers) {
  PlanRequest request = Request(20);
  request.ttft_p95_ms = 150;
  request.output_tokens = 100;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_GT(plan.answer()->layout.replicas, 1);
  EXPECT_EQ(SimulateReplica(plan.request, *plan.answer()).ttft_p95_ms, plan.queue->ttft_p95_ms);
  // And one replica less would not do.
  Candidate fewer = *plan.answer();
  --fewer.layout.replicas;
  fewer.load_per_replica *= 1.0 + 1.0 / fewer.layout.replicas;
  EXPECT_GT(SimulateReplica(plan.request, fewer).ttft_p95_ms, 150);
  EXPECT_EQ(plan.binding, Constraint::kTtft) << plan.binding_reason;
}

// By formula tp 2 x pp 2 holds, too, and more; what could not be the answer is not simulated.
TEST(QueueSimulation, LayoutsThatHoldByFormulaAloneAreSaidTo) {
  PlanRequest request = RequestFor("llama-3.1-70b");
  request.rate_per_s = 1;
  request.ttft_p95_ms = 500;
  request.output_tokens = 100;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_TRUE(plan.answer()->is_simulated);
  int num_promised = 0;
  for (const Candidate& candidate : plan.candidates) {
    if (!candidate.holds) continue;
    num_promised += candidate.is_simulated ? 0 : 1;
    if (candidate.is_simulated) {
      EXPECT_LE(SimulateReplica(request, candidate).ttft_p95_ms, 500) << candidate.layout.ranks();
    }
  }
  EXPECT_GT(num_promised, 0);
  const std::string text = PlanText(plan);
  const std::string kPromise = "; by formula";
  int num_said = 0;
  for (size_t at = text.find(kPromise); at != std::string::npos; at = text.find(kPromise, at + 1)) {
    ++num_said;
  }
  EXPECT_EQ(num_said, num_promised);
  EXPECT_THAT(text, Not(HasSubstr("Instead")));
}

// Half a percent of some thousands is less than what a seed moves.
TEST(QueueSimulation, ManyReplicasAreFoundInFewSimulations) {
  PlanRequest request = RequestFor("llama-3.2-1b", "l4");
  request.tp = 1;
  request.pp = 1;
  request.max_nodes = 4096;
  request.rate_per_s = 1e5;
  request.output_tokens = 100;
  request.ttft_p95_ms = 300;
  int num_simulations = 0;
  SimulationBudget budget{.on_begin = [&](const Layout&) { ++num_simulations; }};
  const LayoutSearch search = SearchLayouts(request, budget);
  ASSERT_TRUE(search.chosen.has_value());
  EXPECT_LE(search.queue->ttft_p95_ms, 300);
  EXPECT_LT(num_simulations, 12);
  EXPECT_LT(budget.tokens, SimulationBudget().tokens);
}

TEST(QueueSimulation, OfLongAnswersCheaperChangesAreByFormula) {
  PlanRequest request = RequestFor("llama-3.1-8b");
  request.tp = 1;
  request.pp = 1;
  request.rate_per_s = 6;
  const int now = MakePlan(request)->answer()->reserved_gpus + 8;
  for (SimulationBudget budget : {SimulationBudget{.tokens = 0}, SimulationBudget()}) {
    const bool is_spent = budget.is_spent();
    const std::vector<Relaxation> relaxations = FindRelaxations(request, now, budget);
    ASSERT_FALSE(relaxations.empty());
    for (const Relaxation& relaxation : relaxations) {
      EXPECT_EQ(relaxation.is_simulated, !is_spent) << relaxation.change;
    }
  }
}

TEST(QueueSimulation, LimitsHoldInTheQueueToo) {
  PlanRequest request = Request(20);
  request.ttft_p95_ms = 500;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok() && plan->answer() != nullptr && plan->queue.has_value());
  EXPECT_LE(plan->queue->ttft_p95_ms, 500);
}

TEST(QueueSimulation, CheaperChangesAreThoseThatHoldInTheQueue) {
  PlanRequest request = Request(20);
  request.ttft_p95_ms = 500;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok() && plan->answer() != nullptr);
  ASSERT_FALSE(plan->relaxations.empty());
  EXPECT_LE(plan->relaxations.size(), 3u);
  for (const Relaxation& relaxation : plan->relaxations) {
    EXPECT_LT(relaxation.gpus, plan->answer()->reserved_gpus) << relaxation.change;
    if (!relaxation.change.starts_with("--rate")) continue;
    request.rate_per_s /= 2;
    const auto changed = MakePlan(request);
    ASSERT_TRUE(changed.ok() && changed->answer() != nullptr);
    EXPECT_EQ(changed->answer()->reserved_gpus, relaxation.gpus);
    EXPECT_LE(changed->queue->ttft_p95_ms, 500);
  }
}

}  // namespace
}  // namespace lockstep::plan
