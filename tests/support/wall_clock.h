// A machine's clock that tests set: what is linked with wall_clock.cc sees it.
#pragma once

#include <cstdint>

namespace lockstep::testing {

// CLOCK_REALTIME is ahead of the machine's by this, in the whole program.
void SetWallClockAhead(int64_t seconds);

}  // namespace lockstep::testing
