#include "parallel/polite_wait.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

namespace lockstep {

void PoliteWait::Pause() {
  const auto waited = Clock::now() - start_;
  if (waited < policy_.spin) return;
  if (waited < policy_.spin + policy_.yield) {
    sched_yield();
    return;
  }
  constexpr auto kShortest = std::chrono::nanoseconds(3000);
  std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(
      waited / 32, kShortest,
      std::max<std::chrono::nanoseconds>(kShortest, policy_.longest_pause)));
}

void SharpenSleepOfThisThread() {
  constexpr unsigned long kSlackNs = 1000;
  prctl(PR_SET_TIMERSLACK, kSlackNs, 0, 0, 0);  // a hint: refusal is harmless
}

}  // namespace lockstep
