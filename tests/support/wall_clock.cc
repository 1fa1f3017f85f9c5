#include "tests/support/wall_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace {
std::atomic<time_t> clock_offset_seconds{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec += clock_offset_seconds;
  return static_cast<int>(failed);
}

namespace lockstep::testing {

void SetWallClockAhead(int64_t seconds) { clock_offset_seconds = seconds; }

}  // namespace lockstep::testing
