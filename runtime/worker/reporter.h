// The thread on which a rank speaks: results in order as the step loop hands them over, heartbeats
// in between. The step loop only locks a queue for a moment; it cannot keep heartbeats from
// leaving.
//
// It also watches the end: when the rank must stop and its busy thread does not, it says so once
// (on_stuck).
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"
#include "runtime/engine/step_plan.h"
#include "runtime/worker/controller_link.h"
#include "runtime/worker/rank_progress.h"

namespace lockstep {

class Reporter {
 public:
  // link and progress must outlive the reporter. on_stuck is called from the reporter's thread.
  Reporter(ControllerLink& link, const RankProgress& progress, std::function<void()> on_stuck);
  ~Reporter();  // Finish()

  void Report(engine::StepResult result);
  // From now on, the first at once.
  void StartHeartbeats(absl::Duration interval);
  // The next heartbeat now: something long has begun. Nothing before StartHeartbeats.
  void BeatNow();
  // on_stuck follows after grace unless Finish comes before. The first call counts.
  void ExpectEnd(absl::Duration grace);
  // Sends what is queued and ends the thread. Idempotent.
  void Finish();

 private:
  using Clock = std::chrono::steady_clock;
  void Run();
  void SendResults(std::deque<engine::StepResult> results);
  void SendHeartbeat();

  ControllerLink& link_;
  const RankProgress& progress_;
  const std::function<void()> on_stuck_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<engine::StepResult> results_;
  Clock::duration heartbeat_interval_{};
  Clock::time_point next_heartbeat_ = Clock::time_point::max();
  Clock::time_point stuck_at_ = Clock::time_point::max();
  bool end_expected_ = false;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace lockstep
