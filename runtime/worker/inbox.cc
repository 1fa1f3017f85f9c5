#include "runtime/worker/inbox.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep {

absl::Status Inbox::Put(const v1::ToRank& message) {
  if (message.has_plan()) {
    ASSIGN_OR_RETURN(engine::StepPlan plan, DecodePlan(message.plan()));
    return plans_.Push(std::move(plan));
  }
  if (message.has_shutdown()) plans_.Close();
  std::lock_guard lock(mutex_);
  if (message.has_welcome() && !welcome_.has_value()) {
    welcome_ = message.welcome();
  } else if (message.has_rehearse() && !must_rehearse_.has_value()) {
    must_rehearse_ = true;
  } else if (message.has_start() && !start_.has_value()) {
    start_ = message.start();
    if (!must_rehearse_.has_value()) must_rehearse_ = false;
  } else if (message.has_shutdown()) {
    shut_down_ = true;
  } else {
    return absl::InvalidArgumentError("the controller sent a message that is unknown or repeated");
  }
  changed_.notify_all();
  return absl::OkStatus();
}

void Inbox::Fail(const absl::Status& status) {
  std::lock_guard lock(mutex_);
  if (shut_down_) return;
  status_.Update(status);
  plans_.Fail(status);
  changed_.notify_all();
}

absl::Status Inbox::CauseOf(absl::Status status) {
  std::lock_guard lock(mutex_);
  if (!status_.ok()) return status_;
  const bool peer_left = shut_down_ && absl::IsUnavailable(status);
  return peer_left ? absl::OkStatus() : status;
}

bool Inbox::shut_down() {
  std::lock_guard lock(mutex_);
  return shut_down_;
}

}  // namespace lockstep
