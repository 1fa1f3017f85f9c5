// Plans on their way from the link's thread to the step loop's. One producer, one consumer; the
// consumer sleeps while there is nothing to do.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine/step_plan.h"
#include "runtime/worker/checked_wait.h"

namespace lockstep {

class PlanQueue {
 public:
  // Many more plans than a controller lets run ahead.
  static constexpr size_t kCapacity = 1024;

  // RESOURCE_EXHAUSTED when full. Plans pushed after Close or Fail are dropped.
  absl::Status Push(engine::StepPlan plan);
  // No more plans will come; those queued are still delivered.
  void Close();
  // Delivers nothing more. The first status stays.
  void Fail(absl::Status status);

  // Waits for the next plan. nullopt: closed and empty. Error: the one given to Fail, or check's.
  absl::StatusOr<std::optional<engine::StepPlan>> Pop(const WaitCheck& check = nullptr);
  // The same, but nullopt also once is_done(), which is asked every now and then (called without
  // the lock; nobody wakes the consumer when it turns true), and no plan is there.
  absl::StatusOr<std::optional<engine::StepPlan>> PopUnless(const std::function<bool()>& is_done);

 private:
  static constexpr std::chrono::microseconds kLook{20};

  // Of a queue that has ended or holds a plan.
  absl::StatusOr<std::optional<engine::StepPlan>> Take();
  bool HasNews() const { return !plans_.empty() || closed_ || !status_.ok(); }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::StepPlan> plans_;
  bool closed_ = false;
  absl::Status status_;
};

}  // namespace lockstep
