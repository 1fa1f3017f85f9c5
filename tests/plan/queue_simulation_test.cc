#include "deploy/plan/queue_simulation.h"

#include <fstream>

#include "deploy/plan/planner.h"
#include "deploy/plan/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

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

TEST(QueueSimulation, MoreRequestsNeverWaitLess) {
  const Plan plan = *MakePlan(Request(0.2));
  double before = 0;
  for (const double rate : {0.5, 2.0, 6.0}) {
    const QueueResult result =
        SimulateReplica(plan.request, *plan.answer(), {PoissonArrivals(rate, 2000, 100, 100, 7)});
    EXPECT_GE(result.ttft_p95_ms, 0.95 * before);  // they meet other steps, too
    before = result.ttft_p95_ms;
  }
}

// As lockstep bench takes them of what it measures.
TEST(QueueSimulation, QuantilesInterpolate) {
  const Plan plan = *MakePlan(Request(0.2));
  const QueueResult result =
      SimulateReplica(plan.request, *plan.answer(), {PoissonArrivals(100, 2000, 10, 2, 7)});
  ASSERT_EQ(result.num_requests, 2);
  EXPECT_GT(result.ttft_p95_ms, result.ttft_p50_ms);
  EXPECT_NEAR(result.ttft_p50_ms, result.ttft_mean_ms, 1e-9);
}

TEST(QueueSimulation, TheSameSeedGivesTheSameNumbers) {
  const Plan plan = *MakePlan(Request(2));
  const ArrivalStream arrivals{PoissonArrivals(2, 500, 50, 50, 3)};
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
  const auto tpot = [&](int count, bool goes_on) {
    const QueueResult result = SimulateReplica(
        plan.request, *plan.answer(), {PoissonArrivals(rate, 1000, 250, count, 1), goes_on});
    EXPECT_TRUE(result.is_steady);
    return result.tpot_p50_ms;
  };
  const double in_the_long_run = tpot(3000, /*goes_on=*/false);
  EXPECT_NEAR(plan.queue->tpot_p50_ms, in_the_long_run, 0.15 * in_the_long_run);
  EXPECT_NEAR(tpot(3000, /*goes_on=*/true), plan.queue->tpot_p50_ms, 1e-9) << "no longer than that";
  EXPECT_LT(tpot(60, /*goes_on=*/false), 0.85 * in_the_long_run) << "they never fill it";
}

TEST(QueueSimulation, MoreThanAReplicaServesIsNoSteadyLoad) {
  PlanRequest request = Request(2);
  request.ttft_p95_ms = 1e5;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_TRUE(plan.queue->is_steady);
  const QueueResult too_much = SimulateReplica(plan.request, *plan.answer(),
                                               {PoissonArrivals(100, 2000, 500, 600, 1), true});
  EXPECT_FALSE(too_much.is_steady);
  EXPECT_GT(too_much.num_requests, 0);
  EXPECT_THAT(QueueText(too_much), HasSubstr("still filling up"));
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

absl::StatusOr<std::vector<Arrival>> Load(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/trace.csv";
  std::ofstream(path) << text;
  return LoadTrace(path);
}

TEST(Trace, IsReadWithOrWithoutAHeader) {
  const auto trace = Load("seconds,input,output\n0,10,5\n0.5,20,6\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[1].input_tokens, 20);
  EXPECT_TRUE(Load("0,10,5\n1,1,1\n").ok());
}

TEST(Trace, ErrorsNameTheLine) {
  const auto message = [](const char* text) { return std::string(Load(text).status().message()); };
  EXPECT_THAT(message("0,10,5\nx,1,1\n"), HasSubstr("line 2 is \"x,1,1\", not seconds"));
  EXPECT_THAT(message("5,10,5\n4,1,1\n"), HasSubstr("line 2 goes back"));
  EXPECT_THAT(message("0,10,0\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("0,10,5\n1,999999999,1\n"), HasSubstr("to 134217728 tokens"));
  EXPECT_THAT(message("0,10,5\n"), HasSubstr("fewer than two"));
  const auto of = [](const std::string& path) {
    return std::string(LoadTrace(path).status().message());
  };
  EXPECT_THAT(of(::testing::TempDir()), HasSubstr("cannot read"));
  EXPECT_EQ(of("/dev/zero"), "/dev/zero has more than 16777216 bytes");
}

}  // namespace
}  // namespace lockstep::plan
