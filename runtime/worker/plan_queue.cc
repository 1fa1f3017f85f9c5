#include "runtime/worker/plan_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep {

absl::Status PlanQueue::Push(engine::StepPlan plan) {
  {
    std::lock_guard lock(mutex_);
    if (closed_ || !status_.ok()) return absl::OkStatus();
    if (plans_.size() == kCapacity) {
      return absl::ResourceExhaustedError(
          absl::StrCat(kCapacity, " plans wait already when step ", plan.step_id, " arrives"));
    }
    plans_.push_back(std::move(plan));
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void PlanQueue::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
}

void PlanQueue::Fail(absl::Status status) {
  {
    std::lock_guard lock(mutex_);
    status_.Update(std::move(status));
  }
  changed_.notify_one();
}

absl::StatusOr<std::optional<engine::StepPlan>> PlanQueue::Take() {
  if (!status_.ok()) return status_;
  if (plans_.empty()) return std::optional<engine::StepPlan>();
  std::optional<engine::StepPlan> plan(std::move(plans_.front()));
  plans_.pop_front();
  return plan;
}

absl::StatusOr<std::optional<engine::StepPlan>> PlanQueue::Pop(const WaitCheck& check) {
  std::unique_lock lock(mutex_);
  RETURN_IF_ERROR(WaitChecked(lock, changed_, check, [&] { return HasNews(); }));
  return Take();
}

absl::StatusOr<std::optional<engine::StepPlan>> PlanQueue::PopUnless(
    const std::function<bool()>& is_done) {
  std::unique_lock lock(mutex_);
  bool done = false;
  while (!HasNews() && !done) {
    lock.unlock();
    done = is_done();
    lock.lock();
    if (!done) changed_.wait_for(lock, kLook, [&] { return HasNews(); });
  }
  return Take();
}

}  // namespace lockstep
