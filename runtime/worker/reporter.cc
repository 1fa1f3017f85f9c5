#include "runtime/worker/reporter.h"

#include <algorithm>
#include <utility>

#include "runtime/worker/plan_codec.h"

namespace lockstep {
namespace {

constexpr std::chrono::hours kLongest(1);  // time_point::max() overflows some clocks' conversions

}  // namespace

Reporter::Reporter(ControllerLink& link, const RankProgress& progress,
                   std::function<void()> on_stuck)
    : link_(link),
      progress_(progress),
      on_stuck_(std::move(on_stuck)),
      thread_([this] { Run(); }) {}

Reporter::~Reporter() { Finish(); }

void Reporter::Finish() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Reporter::StartHeartbeats(absl::Duration interval) {
  {
    std::lock_guard lock(mutex_);
    heartbeat_interval_ = absl::ToChronoMilliseconds(interval);
    next_heartbeat_ = Clock::now();
  }
  changed_.notify_one();
}

void Reporter::BeatNow() {
  {
    std::lock_guard lock(mutex_);
    if (next_heartbeat_ == Clock::time_point::max()) return;
    next_heartbeat_ = Clock::now();
  }
  changed_.notify_one();
}

void Reporter::Report(engine::StepResult result) {
  {
    std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
  }
  changed_.notify_one();
}

void Reporter::ExpectEnd(absl::Duration grace) {
  {
    std::lock_guard lock(mutex_);
    if (end_expected_) return;
    end_expected_ = true;
    stuck_at_ = Clock::now() + absl::ToChronoMilliseconds(grace);
  }
  changed_.notify_one();
}

void Reporter::SendResults(std::deque<engine::StepResult> results) {
  for (const engine::StepResult& result : results) {
    v1::FromRank message;
    EncodeResult(result, message.mutable_result());
    link_.Send(std::move(message));
  }
}

void Reporter::SendHeartbeat() {
  const RankProgress::Snapshot snapshot = progress_.Read();
  v1::FromRank message;
  v1::Heartbeat* heartbeat = message.mutable_heartbeat();
  heartbeat->set_last_step(snapshot.last_step);
  heartbeat->set_operation(snapshot.operation);
  heartbeat->set_operation_age_ms(snapshot.operation_age_ms);
  heartbeat->set_operation_sequence(snapshot.operation_sequence);
  link_.Send(std::move(message));
}

void Reporter::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    // Not wait_until with a predicate: a changed deadline must be looked at again.
    if (!ending_ && results_.empty()) {
      changed_.wait_until(lock, std::min({next_heartbeat_, stuck_at_, Clock::now() + kLongest}));
    }
    std::deque<engine::StepResult> results = std::exchange(results_, {});
    const bool ending = ending_;
    const Clock::time_point now = Clock::now();
    const bool beats = now >= next_heartbeat_;
    if (beats) next_heartbeat_ = now + heartbeat_interval_;
    const bool stuck = now >= stuck_at_ && !ending;
    if (stuck) stuck_at_ = Clock::time_point::max();
    lock.unlock();
    SendResults(std::move(results));
    if (ending) return;
    if (beats) SendHeartbeat();
    if (stuck) on_stuck_();
    lock.lock();
  }
}

}  // namespace lockstep
