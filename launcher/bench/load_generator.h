// Sends a workload in an open or a closed loop and measures every request.
//
// One thread calls Run; gRPC's threads measure tokens as they arrive and report finished requests
// through a mailbox, so that the number of requests in flight needs no threads.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "launcher/base/mailbox.h"
#include "launcher/base/signals.h"
#include "launcher/bench/measurements.h"
#include "launcher/bench/workload.h"
#include "launcher/client/connection.h"
#include "launcher/client/generation_call.h"

namespace lockstep {

struct LoadShape {
  int64_t num_requests = 0;                            // 0 = no limit
  absl::Duration duration = absl::InfiniteDuration();  // of sending; what was sent is waited for
  int64_t concurrency = 0;                             // closed loop: requests in flight
  double rate = 0.0;                                   // open loop: requests per second; 0 = closed
  ArrivalClock::Process arrivals = ArrivalClock::Process::kPoisson;
  uint64_t seed = 1;
};

struct GeneratedLoad {
  absl::Duration elapsed;
  int64_t num_done = 0;
  int64_t num_running = 0;
  int64_t num_tokens = 0;
};

class LoadGenerator {
 public:
  using OnProgress = std::function<void(const GeneratedLoad&)>;
  // All must outlive it. progress may be null; it is called about twice a second.
  LoadGenerator(const Connection& connection, const Workload& workload, absl::Duration timeout,
                InterruptWatcher& interrupts, OnProgress progress);
  ~LoadGenerator();

  // Sends requests first_index, first_index + 1, ... of the workload and waits for all. After an
  // interrupt what is running is cancelled and left out.
  Measurements Run(const LoadShape& shape, uint64_t first_index);
  bool interrupted() const { return interrupted_; }

 private:
  struct ActiveCall;
  struct Finished {
    uint64_t index = 0;
    grpc::Status status;
  };

  void SendDue();
  void Send(absl::Time arrival);
  bool MaySend() const;
  absl::Duration UntilNextEvent() const;
  void Collect(Measurements& measurements);
  void HandleInterrupt();
  void ReportProgress();

  const Connection& connection_;
  const Workload& workload_;
  const absl::Duration timeout_;
  InterruptWatcher& interrupts_;
  const OnProgress progress_;

  Mailbox<Finished> mailbox_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<ActiveCall>> active_;
  std::atomic<int64_t> num_tokens_{0};

  // Of the current Run.
  LoadShape shape_;
  std::optional<ArrivalClock> clock_;
  absl::Time started_;
  absl::Time next_arrival_;
  absl::Time next_report_;
  uint64_t next_index_ = 0;
  int64_t num_sent_ = 0;
  int64_t num_done_ = 0;
  bool interrupted_ = false;
};

}  // namespace lockstep
