// Sleeping until the controller says something, while looking after the other ranks now and then:
// only the sleeping thread may ask them, and nobody wakes it when they have gone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "absl/status/status.h"

namespace lockstep {

// An error ends the wait. Null: nothing to look after.
using WaitCheck = std::function<absl::Status()>;

inline constexpr std::chrono::milliseconds kCheckInterval(200);

// OK once condition() holds, or check's error. check is called without the lock.
template <typename Condition>
absl::Status WaitChecked(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                         const WaitCheck& check, Condition condition) {
  if (check == nullptr) {
    changed.wait(lock, condition);
    return absl::OkStatus();
  }
  while (!changed.wait_for(lock, kCheckInterval, condition)) {
    lock.unlock();
    absl::Status status = check();
    lock.lock();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace lockstep
