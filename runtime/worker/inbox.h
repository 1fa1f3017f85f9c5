// What the controller said, sorted by who waits for it. Filled by the link's threads, read by the
// rank's busy thread.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "lockstep/v1/worker.pb.h"
#include "runtime/worker/checked_wait.h"
#include "runtime/worker/plan_queue.h"

namespace lockstep {

class Inbox {
 public:
  // INVALID_ARGUMENT: malformed or out of place. RESOURCE_EXHAUSTED: too many plans.
  absl::Status Put(const v1::ToRank& message);
  // Ends every wait; plans still queued are dropped. The first status stays; after Shutdown nothing
  // happens.
  void Fail(const absl::Status& status);

  // nullopt: Shutdown came instead. Error: Fail's, or check's.
  absl::StatusOr<std::optional<v1::Welcome>> WaitWelcome(const WaitCheck& check = nullptr) {
    return Wait(welcome_, check);
  }
  absl::StatusOr<std::optional<v1::StartServing>> WaitStart(const WaitCheck& check = nullptr) {
    return Wait(start_, check);
  }
  // Whether Rehearse comes before the start. As above.
  absl::StatusOr<std::optional<bool>> WaitRehearse(const WaitCheck& check = nullptr) {
    return Wait(must_rehearse_, check);
  }
  // Plans received before Shutdown are still delivered.
  PlanQueue& plans() { return plans_; }
  bool shut_down();
  // Fail's status if there was one, OK after Shutdown when only a peer went away, else `status`.
  absl::Status CauseOf(absl::Status status);

 private:
  template <typename Message>
  absl::StatusOr<std::optional<Message>> Wait(const std::optional<Message>& message,
                                              const WaitCheck& check) {
    std::unique_lock lock(mutex_);
    RETURN_IF_ERROR(WaitChecked(
        lock, changed_, check, [&] { return message.has_value() || shut_down_ || !status_.ok(); }));
    if (shut_down_) return std::optional<Message>();
    if (!status_.ok()) return status_;
    return message;
  }

  PlanQueue plans_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<v1::Welcome> welcome_;
  std::optional<bool> must_rehearse_;  // known when either has come
  std::optional<v1::StartServing> start_;
  bool shut_down_ = false;
  absl::Status status_;
};

}  // namespace lockstep
