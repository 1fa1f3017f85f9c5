// How a rank waits for a peer when the wait is a poll: spin, yield, then sleep for growing pauses.
//
// A pause is 1/32 of the time already waited, so that sleeping lengthens no wait by more than about
// 3 %, and is capped, so that a rank that waits long costs a fraction of a percent of a core.
// Yielding is for those who must poll again soon, because their polling moves the bytes; on a busy
// machine the scheduler may take it as the end of a time slice, hence it is short. Single-threaded.
#pragma once

#include <chrono>

namespace lockstep {

class PoliteWait {
 public:
  struct Policy {
    std::chrono::microseconds spin{0};   // none where ranks share cores
    std::chrono::microseconds yield{0};  // then give the core away between polls
    std::chrono::microseconds longest_pause{10000};
  };

  // policy must outlive it.
  explicit PoliteWait(const Policy& policy) : policy_(policy), start_(Clock::now()) {}

  // Call after each unsuccessful poll.
  void Pause();
  // It is time to sleep, for those who have something better to sleep on than the clock.
  bool HasSpunEnough() const { return Clock::now() - start_ >= policy_.spin; }

 private:
  using Clock = std::chrono::steady_clock;
  const Policy& policy_;
  const Clock::time_point start_;
};

// Lets pauses of the calling thread end within a microsecond or so of their time (Linux rounds up
// by 50 us by default).
void SharpenSleepOfThisThread();

}  // namespace lockstep
