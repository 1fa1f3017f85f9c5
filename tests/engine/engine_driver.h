// Drives an Engine against a simulated replica, as the controller's loop does, and checks after
// every step what must always hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/simulated_executor.h"

namespace lockstep::engine {

inline constexpr int32_t kVocabSize = 60;

class EngineDriver {
 public:
  struct Output {
    std::vector<int32_t> tokens;
    std::vector<LogprobInfo> prompt_logprobs;
    std::optional<FinishReason> finish;
    bool silenced = false;  // aborted or finished from outside: no event may follow
    uint32_t num_cached_prompt_tokens = 0;
  };

  explicit EngineDriver(const EngineConfig& config, const SimulatedCosts& costs = {},
                        uint64_t model_seed = 7)
      : config_(config),
        costs_(costs),
        model_(model_seed, kVocabSize, config.eos_token_ids),
        engine_(config) {
    StartReplica();
  }

  // Everything that can move without new results is submitted.
  void Submit() {
    while (std::optional<StepPlan> plan = engine_.Schedule(now())) {
      CheckPlan(*plan);
      if (on_plan_) on_plan_(*plan);
      replica_->Submit(*plan);
      engine_.CheckInvariants();
      plans_.push_back(*std::move(plan));
    }
    TakeEvents();
  }

  // Moves the clock to the next result and commits it; false when none is in flight.
  bool CommitNext() {
    if (replica_->NextResultTime() == absl::InfiniteFuture()) return false;
    replica_->AdvanceTo(std::max(now(), replica_->NextResultTime()));
    auto result = replica_->TakeResult();
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(result->has_value());
    --steps_in_flight_;
    const absl::Status committed = engine_.Commit(**result);
    EXPECT_TRUE(committed.ok()) << committed;
    engine_.CheckInvariants();
    TakeEvents();
    return true;
  }

  // Until nothing is left to do. Fails rather than hangs.
  void RunToEnd(int max_steps = 100000) {
    for (int i = 0; i < max_steps; ++i) {
      Submit();
      if (CommitNext()) continue;
      if (engine_.Idle()) return;
      // Only a deadline can still change something.
      ASSERT_NE(engine_.NextWakeup(), absl::InfiniteFuture()) << "stuck";
      replica_->AdvanceTo(std::max(now(), engine_.NextWakeup()));
    }
    FAIL() << "not idle after " << max_steps << " steps";
  }

  void Abort(uint64_t request_id) {
    engine_.Abort(request_id);
    for (auto& [key, output] : outputs_) {
      if (key.first == request_id && !output.finish) output.silenced = true;
    }
    engine_.CheckInvariants();
  }
  void FinishOutput(uint64_t request_id, uint32_t index) {
    engine_.FinishOutput(request_id, index);
    Output& output = outputs_.at({request_id, index});
    if (!output.finish) output.silenced = true;
    engine_.CheckInvariants();
  }
  // The replica dies with all steps in flight; another one starts empty. Returns the request that
  // is blamed, which is aborted.
  std::optional<uint64_t> LoseReplica() {
    const std::optional<uint64_t> killer = engine_.ResetReplica();
    StartReplica();
    engine_.CheckInvariants();
    if (killer.has_value()) Abort(*killer);
    return killer;
  }

  absl::Status Add(EngineRequest request) {
    const uint64_t id = request.request_id;
    const int num_outputs = request.num_outputs;
    EngineRequest copy = request;
    const absl::Status status = engine_.Add(std::move(request));
    if (!status.ok()) return status;
    requests_.emplace(id, std::move(copy));
    for (int i = 0; i < num_outputs; ++i) outputs_[{id, i}];
    return status;
  }

  // What the output must be (whole, or its beginning when it was cut short), from the model alone.
  void ExpectSameAsAlone() const {
    for (const auto& [key, output] : outputs_) {
      SCOPED_TRACE("request " + std::to_string(key.first) + " output " +
                   std::to_string(key.second));
      const EngineRequest& request = requests_.at(key.first);
      auto expected =
          model_.Generate(request.prompt, request.sampling, key.second, config_.max_model_len);
      const bool whole =
          output.finish == FinishReason::kStop || output.finish == FinishReason::kLength;
      EXPECT_TRUE(output.finish.has_value() || output.silenced) << "never finished";
      if (!whole) {
        ASSERT_LE(output.tokens.size(), expected.size());
        expected.resize(output.tokens.size());
      }
      EXPECT_EQ(output.tokens, expected);
      const bool had_some = !request.emitted.empty() && !request.emitted[key.second].empty();
      if (request.sampling.num_prompt_logprobs >= 0 && key.second == 0 && whole && !had_some) {
        EXPECT_EQ(output.prompt_logprobs,
                  model_.PromptLogprobs(request.prompt, request.sampling.num_prompt_logprobs));
      }
    }
  }

  // Hears every plan; step 1 is the first one of a new replica.
  void OnPlan(std::function<void(const StepPlan&)> on_plan) { on_plan_ = std::move(on_plan); }

  Engine& engine() { return engine_; }
  SimulatedExecutor& replica() { return *replica_; }
  const FakeLanguageModel& model() const { return model_; }
  absl::Time now() const { return replica_ ? replica_->now() : absl::UnixEpoch(); }
  const Output& output(uint64_t request_id, uint32_t index = 0) const {
    return outputs_.at({request_id, index});
  }
  const std::map<std::pair<uint64_t, uint32_t>, Output>& outputs() const { return outputs_; }
  const std::vector<StepPlan>& plans() const { return plans_; }

 private:
  void StartReplica() {
    const SimulatedRankOptions rank{.num_blocks = config_.num_blocks,
                                    .num_host_blocks = config_.num_host_blocks,
                                    .block_size = config_.block_size,
                                    .max_num_seqs = config_.max_num_seqs,
                                    .max_model_len = config_.max_model_len,
                                    .pipeline_depth = config_.pipeline_depth};
    replica_ = std::make_unique<SimulatedExecutor>(rank, costs_.OverStages(config_.pipeline_depth),
                                                   model_, now());
    steps_in_flight_ = 0;
  }

  void CheckPlan(const StepPlan& plan) {
    ++steps_in_flight_;
    EXPECT_LE(steps_in_flight_, config_.max_steps_in_flight);
    int64_t num_tokens = 0;
    bool seen_decode = false;
    for (const SlotWork& work : plan.work) {
      num_tokens += work.num_rows();
      const bool is_decode = work.num_rows() == 1 && work.sample;
      EXPECT_TRUE(is_decode || !seen_decode) << "a chunk after a decode";
      seen_decode |= is_decode;
    }
    EXPECT_LE(num_tokens, config_.max_batched_tokens);
    EXPECT_FALSE(plan.work.empty());
  }

  void TakeEvents() {
    for (EngineEvent& event : engine_.TakeEvents()) {
      const auto it = outputs_.find({event.request_id, event.sequence_index});
      ASSERT_NE(it, outputs_.end()) << "an event for nobody";
      Output& output = it->second;
      EXPECT_FALSE(output.finish.has_value()) << "an event after the end";
      EXPECT_FALSE(output.silenced) << "an event after an abort";
      if (!event.prompt_logprobs.empty()) {
        EXPECT_TRUE(output.tokens.empty()) << "prompt logprobs after the first token";
      }
      output.prompt_logprobs.insert(output.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                                    event.prompt_logprobs.end());
      if (event.num_emitted > 0) {
        EXPECT_TRUE(output.tokens.empty() && !event.token);
        const auto& emitted = requests_.at(event.request_id).emitted[event.sequence_index];
        ASSERT_LE(event.num_emitted, emitted.size());
        output.tokens.assign(emitted.begin(), emitted.begin() + event.num_emitted);
      }
      if (event.token) output.tokens.push_back(event.token->token);
      output.finish = event.finish;
      output.num_cached_prompt_tokens = event.num_cached_prompt_tokens;
    }
  }

  const EngineConfig config_;
  const SimulatedCosts costs_;
  const FakeLanguageModel model_;
  Engine engine_;
  std::unique_ptr<SimulatedExecutor> replica_;
  std::function<void(const StepPlan&)> on_plan_;
  int steps_in_flight_ = 0;
  std::map<uint64_t, EngineRequest> requests_;
  std::map<std::pair<uint64_t, uint32_t>, Output> outputs_;
  std::vector<StepPlan> plans_;
};

}  // namespace lockstep::engine
