// The engine plan by plan, with tokens chosen by the test: block size 4, ten blocks, EOS is token
// 0.
#pragma once

#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/engine/engine.h"

namespace lockstep::engine {

inline EngineConfig SmallConfig() {
  EngineConfig config;
  config.num_blocks = 10;
  config.block_size = 4;
  config.max_num_seqs = 4;
  config.max_batched_tokens = 16;
  config.max_model_len = 40;
  config.max_queued_requests = 8;
  config.eos_token_ids = {0};
  config.vocab_size = 100;
  return config;
}

// Consecutive tokens; ids that differ by a multiple of three begin alike.
inline EngineRequest Prompt(uint64_t id, int num_tokens, int max_tokens = 8) {
  EngineRequest request;
  request.request_id = id;
  request.prompt.resize(num_tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), 1 + 30 * static_cast<int>(id % 3));
  request.sampling.max_tokens = max_tokens;
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  void Start(const EngineConfig& config) { engine_ = std::make_unique<Engine>(config); }

  void Add(EngineRequest request) {
    const absl::Status status = engine_->Add(std::move(request));
    ASSERT_TRUE(status.ok()) << status;
  }
  // The next plan, which must exist.
  StepPlan Next() {
    std::optional<StepPlan> plan = engine_->Schedule(now_);
    EXPECT_TRUE(plan.has_value());
    engine_->CheckInvariants();
    if (!plan) return {};
    plans_.push_back(*plan);
    return *plan;
  }
  bool NothingToDo() { return !engine_->Schedule(now_).has_value(); }

  // A result for the oldest plan in flight in which every sampled token is `token`.
  StepResult Answer(int32_t token) {
    StepResult result;
    result.step_id = plans_.front().step_id;
    for (const SlotWork& work : plans_.front().work) {
      for (int64_t i = 0; i < work.num_sampled(); ++i) {
        result.sampled.push_back({work.slot, token, std::nullopt});
      }
    }
    return result;
  }
  // Commits it and returns what happened.
  std::vector<EngineEvent> Commit(int32_t token = 50) {
    const absl::Status status = engine_->Commit(Answer(token));
    EXPECT_TRUE(status.ok()) << status;
    plans_.pop_front();
    engine_->CheckInvariants();
    return engine_->TakeEvents();
  }
  std::vector<EngineEvent> Step(int32_t token = 50) {
    Next();
    return Commit(token);
  }

  absl::Time now_ = absl::UnixEpoch();
  std::deque<StepPlan> plans_;
  std::unique_ptr<Engine> engine_ = std::make_unique<Engine>(SmallConfig());
};

inline SlotWork Chunk(uint32_t slot, uint32_t num_tokens, bool sample) {
  return {slot, num_tokens, sample};
}
inline SlotWork Decode(uint32_t slot) { return {slot, 1, true}; }

}  // namespace lockstep::engine
