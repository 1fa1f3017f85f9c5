// The engine's plans run by real step loops, ranks as threads.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "parallel/process_grid.h"
#include "runtime/engine/engine.h"
#include "runtime/worker/step_loop.h"
#include "tests/worker/fake_stage.h"

namespace lockstep::testing {

// Ranks as threads; plans go to all of them, results come back in order.
template <typename Stage>
class ThreadReplica {
 public:
  ThreadReplica(int tp, int pp, const StepLoopOptions& options)
      : groups_(MakeInProcessGroups(*ProcessGrid::Create(tp, pp))), queues_(groups_.size()) {
    for (size_t rank = 0; rank < groups_.size(); ++rank) {
      threads_.emplace_back([this, rank, options] { RunRank(rank, options); });
    }
  }
  ~ThreadReplica() { Close(); }

  // Ends the ranks once all plans are done. How many steps ran ahead, of all ranks.
  int64_t Close() {
    for (PlanQueue& queue : queues_) queue.Close();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return num_steps_ahead_;
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
    Stage stage(groups_[rank]);
    RankProgress progress;
    StepLoop loop(options, stage.Calls(), groups_[rank], progress, [&](engine::StepResult result) {
      std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
      changed_.notify_one();
    });
    const absl::Status status = loop.Run(queues_[rank]);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
    std::lock_guard lock(mutex_);
    num_steps_ahead_ += loop.num_steps_ahead();
    if (status.ok()) return;
    groups_[rank].tp->Abort();
    failed_ = true;
    changed_.notify_one();
  }

  std::vector<RankGroups> groups_;
  std::deque<PlanQueue> queues_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::StepResult> results_;
  bool failed_ = false;
  int64_t num_steps_ahead_ = 0;
  std::vector<std::thread> threads_;
};

struct Scenario {
  int tp = 1;
  int pp = 1;
  int64_t num_blocks = 30;
  int max_draft_tokens = 0;
  int64_t max_num_seqs = 6;
  int64_t num_host_blocks = 0;
};

inline BatchLimits LimitsOf(const Scenario& scenario) {
  return {.max_batched_tokens = scenario.max_num_seqs + 10,
          .max_num_seqs = scenario.max_num_seqs,
          .max_model_len = 64,
          .block_size = 4};
}

using Outputs = std::map<uint64_t, std::vector<int32_t>>;

inline void Collect(engine::Engine& engine, Outputs& outputs) {
  for (const engine::EngineEvent& event : engine.TakeEvents()) {
    if (event.token.has_value()) outputs[event.request_id].push_back(event.token->token);
  }
}

struct ServeStats {
  uint64_t num_preemptions = 0;
  int64_t num_steps_ahead = 0;
  uint64_t num_drafts_accepted = 0;
  uint64_t num_drafts_refused = 0;
  uint64_t num_blocks_restored = 0;
};

// Serves the requests together; the tokens of each.
template <typename Stage>
Outputs Serve(const Scenario& scenario, const std::vector<engine::EngineRequest>& requests,
              ServeStats* stats = nullptr) {
  const BatchLimits limits = LimitsOf(scenario);
  engine::EngineConfig config;
  config.num_blocks = scenario.num_blocks;
  config.num_host_blocks = scenario.num_host_blocks;
  config.block_size = limits.block_size;
  config.max_num_seqs = static_cast<int>(limits.max_num_seqs);
  config.max_batched_tokens = static_cast<int>(limits.max_batched_tokens);
  config.max_model_len = limits.max_model_len;
  config.pipeline_depth = scenario.pp;
  config.max_steps_in_flight = scenario.pp + 1;
  config.eos_token_ids = {2};
  config.max_draft_tokens = scenario.max_draft_tokens;
  engine::Engine engine(config);
  ThreadReplica<Stage> replica(scenario.tp, scenario.pp,
                               {.limits = limits,
                                .num_blocks = scenario.num_blocks,
                                .vocab_size = kFakeVocab,
                                .eos_token_ids = {2}});
  const absl::Time now = absl::UnixEpoch();
  Outputs outputs;
  for (const engine::EngineRequest& request : requests) {
    EXPECT_TRUE(engine.Add(request).ok());
  }
  while (!engine.Idle()) {
    while (std::optional<engine::StepPlan> plan = engine.Schedule(now)) replica.Send(*plan);
    const std::optional<engine::StepResult> result = replica.WaitResult();
    if (!result.has_value()) return outputs;
    EXPECT_TRUE(engine.Commit(*result).ok());
    Collect(engine, outputs);
  }
  const int64_t num_steps_ahead = replica.Close();
  const engine::EngineStats counted = engine.Stats();
  if (stats != nullptr) {
    *stats = {counted.num_preemptions, num_steps_ahead, counted.draft_tokens_accepted,
              counted.draft_tokens - counted.draft_tokens_accepted, counted.blocks_restored};
  }
  EXPECT_EQ(counted.blocks_in_use, 0);
  return outputs;
}

inline std::vector<engine::EngineRequest> RandomRequests(uint32_t seed, int count) {
  std::mt19937 random(seed);
  std::vector<engine::EngineRequest> requests;
  for (int i = 0; i < count; ++i) {
    engine::EngineRequest request;
    request.request_id = i + 1;
    for (uint32_t n = 1 + random() % 30; n > 0; --n) {
      request.prompt.push_back(static_cast<int32_t>(3 + random() % 90));
    }
    request.sampling.temperature = i % 2 == 0 ? 0.0f : i % 4 == 1 ? 1.0f : 4.0f;
    request.sampling.seed = random();
    request.sampling.repetition_penalty = i % 4 == 1 ? 1.5f : 1.0f;
    request.sampling.frequency_penalty = i % 4 == 3 ? 0.5f : 0.0f;
    request.sampling.max_tokens = static_cast<int32_t>(1 + random() % 30);
    if (i % 4 != 3) request.prediction = FakeContinuation(request.prompt, 30);
    for (int32_t& token : request.prediction) token = random() % 8 == 0 ? 5 : token;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace lockstep::testing
