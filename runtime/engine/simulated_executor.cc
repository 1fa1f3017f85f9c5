#include "runtime/engine/simulated_executor.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/check.h"

namespace lockstep::engine {

SimulatedExecutor::SimulatedExecutor(const SimulatedRankOptions& rank, const SimulatedCosts& costs,
                                     const FakeLanguageModel& model, absl::Time start)
    : costs_(costs),
      rank_(rank, model),
      now_(start),
      stage_free_at_(rank.pipeline_depth, start),
      sample_at_(rank.max_num_seqs, start) {}

void SimulatedExecutor::Submit(const StepPlan& plan) {
  if (is_lost_) return;
  rank_.ApplyDeltas(plan);
  const absl::Time done = DoneAt(plan);
  running_.push_back({done, rank_.ApplyWork(plan, last_taken_step_)});
}

// Each stage starts when the one before it is done and it is free itself; the first one also needs
// the tokens that decodes start from.
absl::Time SimulatedExecutor::DoneAt(const StepPlan& plan) {
  int64_t num_tokens = 0;
  absl::Time ready = now_;
  for (const SlotOpen& open : plan.opened) sample_at_[open.slot] = now_;
  for (const SlotWork& work : plan.work) {
    num_tokens += work.num_tokens;
    ready = std::max(ready, sample_at_[work.slot]);
  }
  absl::Duration cost = costs_.base + num_tokens * costs_.per_token +
                        rank_.num_context_tokens(plan) * costs_.per_context_token;
  if (const auto delay = delays_.find(plan.step_id); delay != delays_.end()) cost += delay->second;
  const absl::Duration per_stage = cost / static_cast<int64_t>(stage_free_at_.size());
  for (absl::Time& free_at : stage_free_at_) {
    ready = free_at = std::max(ready, free_at) + per_stage;
  }
  for (const SlotWork& work : plan.work) {
    if (work.sample) sample_at_[work.slot] = ready;
  }
  return ready;
}

absl::StatusOr<std::optional<StepResult>> SimulatedExecutor::TakeResult() {
  if (running_.empty() || running_.front().done > now_) {
    if (is_lost_) return absl::UnavailableError("the simulated replica is lost");
    return std::nullopt;
  }
  StepResult result = std::move(running_.front().result);
  running_.pop_front();
  last_taken_step_ = result.step_id;
  return result;
}

void SimulatedExecutor::AdvanceTo(absl::Time now) {
  LS_CHECK(now >= now_) << "time goes forward";
  now_ = now;
}

absl::Time SimulatedExecutor::NextResultTime() const {
  if (is_lost_ || running_.empty()) return absl::InfiniteFuture();
  return running_.front().done;
}

}  // namespace lockstep::engine
