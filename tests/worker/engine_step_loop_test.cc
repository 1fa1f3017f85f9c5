// The engine's plans run by real step loops: what each request gets must not depend on what else
// runs.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "parallel/process_grid.h"
#include "runtime/engine/engine.h"
#include "runtime/worker/step_loop.h"
#include "tests/worker/fake_stage.h"

namespace lockstep {
namespace {

using testing::FakeContinuation;

// Ranks as threads; plans go to all of them, results come back in order.
class ThreadReplica {
 public:
  ThreadReplica(int tp, int pp, const StepLoopOptions& options)
      : groups_(MakeInProcessGroups(*ProcessGrid::Create(tp, pp))), queues_(groups_.size()) {
    for (size_t rank = 0; rank < groups_.size(); ++rank) {
      threads_.emplace_back([this, rank, options] { RunRank(rank, options); });
    }
  }
  ~ThreadReplica() {
    for (PlanQueue& queue : queues_) queue.Close();
    for (std::thread& thread : threads_) thread.join();
  }

  void Send(const engine::StepPlan& plan) {
    for (PlanQueue& queue : queues_) ASSERT_TRUE(queue.Push(plan).ok());
  }
  // nullopt: a rank failed.
  std::optional<engine::StepResult> WaitResult() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !results_.empty() || failed_; });
    if (results_.empty()) return std::nullopt;
    engine::StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

 private:
  void RunRank(size_t rank, const StepLoopOptions& options) {
    testing::FakeStage stage(groups_[rank]);
    RankProgress progress;
    StepLoop loop(options, stage.Calls(), groups_[rank], progress, [&](engine::StepResult result) {
      std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
      changed_.notify_one();
    });
    const absl::Status status = loop.Run(queues_[rank]);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
    if (status.ok()) return;
    groups_[rank].tp->Abort();
    std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_one();
  }

  std::vector<RankGroups> groups_;
  std::deque<PlanQueue> queues_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::StepResult> results_;
  bool failed_ = false;
  std::vector<std::thread> threads_;
};

struct Scenario {
  int tp = 1;
  int pp = 1;
  int64_t num_blocks = 30;
};

using Outputs = std::map<uint64_t, std::vector<int32_t>>;

void Collect(engine::Engine& engine, Outputs& outputs) {
  for (const engine::EngineEvent& event : engine.TakeEvents()) {
    if (event.token.has_value()) outputs[event.request_id].push_back(event.token->token);
  }
}

// Serves the requests together; the tokens of each.
Outputs Serve(const Scenario& scenario, const std::vector<engine::EngineRequest>& requests,
              uint64_t* num_preemptions = nullptr) {
  const BatchLimits limits{
      .max_batched_tokens = 16, .max_num_seqs = 6, .max_model_len = 64, .block_size = 4};
  engine::EngineConfig config;
  config.num_blocks = scenario.num_blocks;
  config.block_size = limits.block_size;
  config.max_num_seqs = static_cast<int>(limits.max_num_seqs);
  config.max_batched_tokens = static_cast<int>(limits.max_batched_tokens);
  config.max_model_len = limits.max_model_len;
  config.pipeline_depth = scenario.pp;
  config.max_steps_in_flight = scenario.pp + 1;
  config.eos_token_ids = {2};
  engine::Engine engine(config);
  ThreadReplica replica(scenario.tp, scenario.pp,
                        {.limits = limits,
                         .num_blocks = scenario.num_blocks,
                         .vocab_size = testing::kFakeVocab,
                         .eos_token_ids = {2}});
  const absl::Time now = absl::UnixEpoch();
  Outputs outputs;
  for (const engine::EngineRequest& request : requests) {
    EXPECT_TRUE(engine.Add(request, now).ok());
  }
  while (!engine.Idle()) {
    while (std::optional<engine::StepPlan> plan = engine.Schedule(now)) replica.Send(*plan);
    const std::optional<engine::StepResult> result = replica.WaitResult();
    if (!result.has_value()) return outputs;
    EXPECT_TRUE(engine.Commit(*result, now).ok());
    Collect(engine, outputs);
  }
  if (num_preemptions != nullptr) *num_preemptions = engine.Stats().num_preemptions;
  EXPECT_EQ(engine.Stats().blocks_in_use, 0);
  return outputs;
}

std::vector<engine::EngineRequest> RandomRequests(uint32_t seed, int count) {
  std::mt19937 random(seed);
  std::vector<engine::EngineRequest> requests;
  for (int i = 0; i < count; ++i) {
    engine::EngineRequest request;
    request.request_id = i + 1;
    for (uint32_t n = 1 + random() % 30; n > 0; --n) {
      request.prompt.push_back(static_cast<int32_t>(3 + random() % 90));
    }
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 4.0f;
    request.sampling.seed = random();
    request.sampling.repetition_penalty = i % 4 == 1 ? 1.5f : 1.0f;
    request.sampling.frequency_penalty = i % 4 == 3 ? 0.5f : 0.0f;
    request.sampling.max_tokens = static_cast<int32_t>(1 + random() % 30);
    requests.push_back(std::move(request));
  }
  return requests;
}

class EngineStepLoopTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(EngineStepLoopTest, EachRequestGetsWhatItGetsAlone) {
  const std::vector<engine::EngineRequest> requests = RandomRequests(5, 30);
  uint64_t num_preemptions = 0;
  const Outputs together = Serve(GetParam(), requests, &num_preemptions);
  EXPECT_GT(num_preemptions, 0u);
  ASSERT_EQ(together.size(), requests.size());
  for (const engine::EngineRequest& request : requests) {
    const Outputs alone = Serve({.tp = 1, .pp = 1, .num_blocks = 100}, {request});
    EXPECT_EQ(together.at(request.request_id), alone.at(request.request_id))
        << "request " << request.request_id;
  }
}

TEST_P(EngineStepLoopTest, GreedyOutputsAreTheModelsContinuation) {
  for (const auto& request : RandomRequests(6, 8)) {
    if (request.sampling.temperature > 0) continue;
    const Outputs outputs = Serve(GetParam(), {request});
    std::vector<int32_t> expected = FakeContinuation(request.prompt, request.sampling.max_tokens);
    const auto eos = std::find(expected.begin(), expected.end(), 2);
    if (eos != expected.end()) expected.erase(eos + 1, expected.end());
    EXPECT_EQ(outputs.at(request.request_id), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, EngineStepLoopTest,
                         ::testing::Values(Scenario{1, 1}, Scenario{2, 1}, Scenario{1, 2},
                                           Scenario{1, 3}, Scenario{2, 2}),
                         [](const auto& info) {
                           return "tp" + std::to_string(info.param.tp) + "_pp" +
                                  std::to_string(info.param.pp);
                         });

}  // namespace
}  // namespace lockstep
