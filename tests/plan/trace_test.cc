#include <algorithm>
#include <fstream>

#include "absl/strings/str_format.h"
#include "deploy/plan/arrivals.h"
#include "deploy/plan/layout_search.h"
#include "deploy/plan/planner.h"
#include "deploy/plan/relaxations.h"
#include "deploy/plan/replica_queue.h"
#include "deploy/plan/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Whose name the reason begins with.
const Candidate* Find(const Plan& plan, const std::string& reason) {
  for (const Candidate& candidate : plan.candidates) {
    const std::string name =
        absl::StrFormat("tp %d x pp %d:", candidate.layout.tp, candidate.layout.pp);
    if (reason.compare(0, name.size(), name) == 0) return &candidate;
  }
  return nullptr;
}

PlanRequest TraceRequest(const std::vector<Arrival>& trace) {
  PlanRequest request = RequestFor();
  request.trace = trace;
  const TraceSummary summary = *Summarize(trace);
  request.rate_per_s = summary.rate_per_s;
  request.input_tokens = summary.input_tokens;
  request.output_tokens = summary.output_tokens;
  request.context = summary.longest;
  return request;
}

// Two requests a second for five minutes, then a hundred.
TEST(Trace, IsSimulatedToItsEnd) {
  std::vector<Arrival> trace = PoissonArrivals(2, 500, 100, 1).First(600);
  const double begin = trace.back().seconds;
  for (Arrival arrival : PoissonArrivals(100, 500, 100, 2).First(3000)) {
    arrival.seconds += begin;
    trace.push_back(arrival);
  }
  PlanRequest request = TraceRequest(trace);
  request.ttft_p95_ms = 200;
  const Plan plan = *MakePlan(request);
  ASSERT_TRUE(plan.answer() != nullptr && plan.queue.has_value());
  EXPECT_GT(plan.answer()->layout.gpus(), 1);
  EXPECT_EQ(plan.queue->num_left_out, 0);
}

// Four requests a second of which every 20th has 120,000 tokens: 24,400 tokens a second of which
// attention takes the most; of their mean length one GPU serves them.
std::vector<Arrival> TraceOfFewLongPrompts(int count) {
  std::vector<Arrival> trace = PoissonArrivals(4, 100, 50, 1).First(count);
  for (size_t i = 19; i < trace.size(); i += 20) trace[i].input_tokens = 120000;
  return trace;
}

TEST(Trace, WhatFillsUpToItsEndIsNoAnswer) {
  PlanRequest request = TraceRequest(TraceOfFewLongPrompts(3000));
  SimulationBudget budget;
  const LayoutSearch search = SearchLayouts(request, budget);
  ASSERT_TRUE(search.chosen.has_value());
  EXPECT_GT(search.candidates[*search.chosen].layout.gpus(), 1);
  EXPECT_TRUE(search.queue->is_steady);
  EXPECT_LT(search.queue->ttft_p50_ms, 1e4);
  request.tp = 1;
  request.pp = 1;
  request.gpus_per_node = 1;
  request.max_nodes = 1;
  const Plan of_one = *MakePlan(request);
  EXPECT_EQ(of_one.answer(), nullptr);
  EXPECT_EQ(of_one.binding, Constraint::kRate) << of_one.binding_reason;
}

TEST(Trace, MayCrowdAndDrain) {
  std::vector<Arrival> trace = PoissonArrivals(2, 500, 100, 1).First(1200);
  for (size_t i = 300; i < 600; ++i) trace[i].seconds = trace[300].seconds;
  EXPECT_TRUE(MakePlan(TraceRequest(trace))->queue->is_steady);
}

// A mean prompt takes half a second, all but one in fifty 20 ms.
TEST(Trace, LimitsAreOfItsRequestsNotOfTheirMean) {
  std::vector<Arrival> trace = PoissonArrivals(0.2, 20, 5, 1).First(500);
  for (size_t i = 25; i < trace.size(); i += 50) trace[i].input_tokens = 100000;
  PlanRequest request = TraceRequest(trace);
  request.ttft_p95_ms = 60;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_GT(plan.answer()->prediction.ttft_p95_ms, 60);
  EXPECT_LE(plan.queue->ttft_p95_ms, 60);
}

// Every other request has a long prompt; each of two replicas gets its part of them.
TEST(Trace, ReplicasShareWhatComesInTurns) {
  std::vector<Arrival> trace = PoissonArrivals(1, 10, 5, 1).First(2000);
  for (size_t i = 1; i < trace.size(); i += 2) trace[i].input_tokens = 1000;
  double long_prompts = 0;
  for (const Arrival& arrival : ShareOfTrace(trace, 2).arrivals) {
    long_prompts += arrival.input_tokens == 1000 ? 1 : 0;
  }
  EXPECT_NEAR(long_prompts, 500, 50);
}

TEST(Trace, TheSharesOfAllReplicasAreTheTrace) {
  const std::vector<Arrival> trace = PoissonArrivals(1, 10, 5, 1).First(100);
  std::vector<double> seconds;
  for (int replica = 0; replica < 7; ++replica) {
    for (const Arrival& arrival : ShareOfTrace(trace, 7, replica).arrivals) {
      seconds.push_back(arrival.seconds);
    }
  }
  // Of the last two some draw a place behind the end.
  EXPECT_GE(seconds.size(), 98u);
  std::sort(seconds.begin(), seconds.end());
  EXPECT_EQ(std::adjacent_find(seconds.begin(), seconds.end()), seconds.end());
}

// Of a share, or of one that is empty, a 95th percentile would be luck.
TEST(Trace, OfFewRequestsAllAreMeasured) {
  std::vector<Arrival> trace = PoissonArrivals(1, 2000, 500, 1).First(6);
  PlanRequest request = TraceRequest(trace);
  request.tp = request.pp = 1;
  const QueueResult queue = SimulateReplica(request, Judge(request, 1, 1, 9));
  EXPECT_EQ(queue.num_requests, 6);
  EXPECT_EQ(queue.num_replicas, 9);
  EXPECT_GT(queue.ttft_p50_ms, 50);
  EXPECT_THAT(QueueText(queue), HasSubstr("in 6 requests to 9 replicas"));
  request.ttft_p95_ms = request.tpot_p95_ms = 1;
  EXPECT_EQ(MakePlan(request)->answer(), nullptr);
}

// Before any queue is simulated, and with the layout that is nearest as the reason.
TEST(Trace, LimitsThatARequestAloneBreaksAreToldAtOnce) {
  std::vector<Arrival> trace = PoissonArrivals(1, 4000, 100, 1).First(400);
  for (size_t i = 0; i < trace.size(); ++i) trace[i].input_tokens += static_cast<int64_t>(i);
  PlanRequest request = TraceRequest(trace);
  int num_simulated = 0;
  SimulationBudget budget;
  budget.on_begin = [&](const Layout&) { ++num_simulated; };
  request.ttft_p95_ms = 1;
  Plan plan = *MakePlan(request, budget);
  EXPECT_EQ(plan.answer(), nullptr);
  EXPECT_EQ(plan.binding, Constraint::kTtft);
  EXPECT_THAT(plan.binding_reason, HasSubstr("ms of a request alone, of 4379 tokens (5 % have "
                                             "more), above 1.0 ms"));
  request.ttft_p95_ms = 0;
  request.tpot_p95_ms = 0.5;
  plan = *MakePlan(request, budget);
  EXPECT_EQ(plan.binding, Constraint::kTpot);
  EXPECT_EQ(num_simulated, 0);
  for (const Candidate& candidate : plan.candidates) {
    if (candidate.broken != Constraint::kTpot) continue;
    EXPECT_LE(Find(plan, plan.binding_reason)->prediction.tpot_ms, candidate.prediction.tpot_ms);
  }
}

// Their limits are known to queues alone.
TEST(Trace, ChangesThatWereNotSimulatedAreNoAdvice) {
  PlanRequest request = TraceRequest(PoissonArrivals(3, 2000, 300, 1).First(300));
  request.ttft_p95_ms = 100;
  SimulationBudget spent{.tokens = 0};
  EXPECT_THAT(FindRelaxations(request, INT32_MAX, spent), IsEmpty());
  request.ttft_p95_ms = 0;
  EXPECT_THAT(FindRelaxations(request, INT32_MAX, spent), Not(IsEmpty()));
}

TEST(Trace, OfATraceWithoutEndTheRestIsLeftOutAndSaidTo) {
  // 600 tokens of which prompts count a sixteenth: 3.2 million, and twice that.
  const std::vector<Arrival> trace = PoissonArrivals(1, 1600, 500, 1).First(10000);
  const TraceShare share = ShareOfTrace(trace, 1);
  EXPECT_EQ(share.arrivals.size(), 6666u);
  EXPECT_EQ(share.num_left_out, 3334u);
  EXPECT_EQ(ShareOfTrace(trace, 2).arrivals.size(), 5000u);
  QueueResult queue;
  queue.num_left_out = 3334;
  EXPECT_THAT(QueueText(queue), HasSubstr("; 3,334 of the trace that follow are left out"));
  EXPECT_THAT(QueueJson(queue).dump(), HasSubstr("\"num_left_out\":3334"));
}

// By formula, of their mean length, one GPU serves them in FP8.
TEST(Trace, CheaperChangesAreThoseThatHoldInTheQueue) {
  PlanRequest request = TraceRequest(TraceOfFewLongPrompts(2000));
  request.tp = 1;
  request.pp = 1;
  SimulationBudget budget;
  const std::vector<Relaxation> relaxations = FindRelaxations(request, INT32_MAX, budget);
  request.weights = *FindWeightFormat("fp8");
  const LayoutSearch formula = SearchByFormula(request);
  const Plan plan = *MakePlan(request);
  ASSERT_TRUE(formula.chosen.has_value() && plan.answer() != nullptr);
  EXPECT_GT(plan.answer()->reserved_gpus, formula.candidates[*formula.chosen].reserved_gpus);
  for (const Relaxation& relaxation : relaxations) {
    if (relaxation.change != "--weights fp8") continue;
    EXPECT_EQ(relaxation.gpus, plan.answer()->reserved_gpus);
    return;
  }
  FAIL() << "FP8 takes fewer GPUs";
}

TEST(Trace, CheaperChangesMayBeGivenBesideIt) {
  std::vector<Arrival> trace = PoissonArrivals(60, 500, 100, 1).First(2000);
  trace[1000].input_tokens = 4000;
  PlanRequest request = TraceRequest(trace);
  request.tp = 1;
  request.pp = 1;
  request.context = 6000;
  request.kv = *FindKvFormat("fp8");
  request.memory.utilization = 0.95;
  request.weights = *FindWeightFormat("int4");
  SimulationBudget budget;
  const std::vector<Relaxation> relaxations = FindRelaxations(request, 1000, budget);
  ASSERT_EQ(relaxations.size(), 1u);
  EXPECT_EQ(relaxations[0].change, "--context 4100");
  request.context = 4100;
  EXPECT_TRUE(FindRelaxations(request, 1000, budget).empty());
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
  EXPECT_THAT(message("nan,5,5\n0,1,1\n1,1,1\n"), HasSubstr("line 1 is \"nan,5,5\", not"));
  EXPECT_THAT(message("x,5,5\n0,1,1\n1,1,1\n"), HasSubstr("line 1 is \"x,5,5\", not"));
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
