// What threads other than the event loop may know of it: is it serving, why not, how much it can
// hold. Thread-safe; only the loop writes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/controller/health_service.h"
#include "runtime/controller/request_validation.h"

namespace lockstep {

// What is agreed once the first ranks are ready; it holds for later epochs too.
struct Capacity {
  RequestLimits limits;
  int64_t num_kv_blocks = 0;
};

class ServingState {
 public:
  // health must outlive it.
  explicit ServingState(HealthService& health) : health_(health) {}

  enum class Phase { kStarting, kServing, kRecovering, kFailed };
  struct Snapshot {
    Phase phase = Phase::kStarting;
    bool draining = false;
    std::string detail;  // what it waits for, or why it failed
    std::optional<Capacity> capacity;
  };

  // Health changes in the same moment: who reads SERVING is admitted, who is told that it serves
  // reads SERVING.
  void Publish(Snapshot snapshot);
  void PublishDrained();

  // What requests are checked against, or UNAVAILABLE while none are accepted. While a lost replica
  // may come back, requests are accepted and wait.
  static absl::StatusOr<Capacity> AdmissionBy(const Snapshot& snapshot);
  absl::StatusOr<Capacity> Admission() const;
  std::optional<Capacity> capacity() const;

  // OK once serving; FAILED_PRECONDITION with the cause when it failed; DEADLINE_EXCEEDED.
  absl::Status WaitServing(absl::Time deadline) const;
  bool WaitDrained(absl::Time deadline) const;

 private:
  HealthService& health_;
  mutable absl::Mutex mutex_;
  mutable absl::CondVar changed_;
  Snapshot now_ ABSL_GUARDED_BY(mutex_);
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
