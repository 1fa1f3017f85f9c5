#include "runtime/engine/simulated_executor.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/check.h"

namespace lockstep::engine {

StageTime SimulatedCosts::OverStages(int num_stages) const {
  return [costs = *this, num_stages](const SimulatedStep& step, int) {
    const int64_t num_context_tokens =
        step.num_chunk_context_tokens + step.num_decode_context_tokens;
    const absl::Duration cost = costs.base +
                                (step.num_chunk_tokens + step.num_decodes) * costs.per_token +
                                num_context_tokens * costs.per_context_token;
    return cost / num_stages;
  };
}

SimulatedExecutor::SimulatedExecutor(const SimulatedRankOptions& rank, StageTime stage_time,
                                     const FakeLanguageModel& model, absl::Time start)
    : stage_time_(std::move(stage_time)),
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
  absl::Time ready = now_;
  for (const SlotOpen& open : plan.opened) sample_at_[open.slot] = now_;
  for (const SlotWork& work : plan.work) ready = std::max(ready, sample_at_[work.slot]);
  ready = std::max(ready, stage_free_at_.front());
  SimulatedStep step = Describe(plan);
  for (const Running& other : running_) step.num_active += other.done > ready ? 1 : 0;
  for (size_t stage = 0; stage < stage_free_at_.size(); ++stage) {
    absl::Time& free_at = stage_free_at_[stage];
    ready = free_at = std::max(ready, free_at) + stage_time_(step, static_cast<int>(stage));
  }
  for (const SlotWork& work : plan.work) {
    if (work.sample) sample_at_[work.slot] = ready;
  }
  return ready;
}

SimulatedStep SimulatedExecutor::Describe(const StepPlan& plan) const {
  SimulatedStep step;
  for (const SlotWork& work : plan.work) {
    const int64_t context = rank_.slot(work.slot).computed + work.num_rows();
    if (work.num_rows() == 1 && work.sample) {
      ++step.num_decodes;
      step.num_decode_context_tokens += context;
    } else {
      ++step.num_chunks;
      step.num_chunk_tokens += work.num_rows();
      step.num_chunk_context_tokens += context;
    }
  }
  return step;
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
