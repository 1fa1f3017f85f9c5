#include "runtime/controller/serving_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {

void ServingState::Publish(Snapshot snapshot) {
  absl::MutexLock lock(&mutex_);
  now_ = std::move(snapshot);
  health_.SetServing(now_.phase == Phase::kServing && !now_.draining);
  changed_.SignalAll();
}

void ServingState::PublishDrained() {
  absl::MutexLock lock(&mutex_);
  drained_ = true;
  changed_.SignalAll();
}

absl::StatusOr<Capacity> ServingState::AdmissionBy(const Snapshot& snapshot) {
  if (snapshot.draining) {
    return absl::UnavailableError("the server is shutting down: retry on another one");
  }
  if (snapshot.phase == Phase::kFailed) return absl::UnavailableError(snapshot.detail);
  if (!snapshot.capacity) {
    return absl::UnavailableError(absl::StrCat("the server is starting (", snapshot.detail,
                                               "): retry when its health is SERVING"));
  }
  return *snapshot.capacity;
}

absl::StatusOr<Capacity> ServingState::Admission() const {
  absl::MutexLock lock(&mutex_);
  return AdmissionBy(now_);
}

std::optional<Capacity> ServingState::capacity() const {
  absl::MutexLock lock(&mutex_);
  return now_.capacity;
}

absl::Status ServingState::WaitServing(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  while (now_.phase != Phase::kServing && now_.phase != Phase::kFailed) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  if (now_.phase == Phase::kServing) return absl::OkStatus();
  if (now_.phase == Phase::kFailed) return absl::FailedPreconditionError(now_.detail);
  return absl::DeadlineExceededError(now_.detail);
}

bool ServingState::WaitDrained(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  while (!drained_) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  return drained_;
}

}  // namespace lockstep
