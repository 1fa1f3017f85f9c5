// The clock of deadlines, leases and measured times. A wall clock that is set would end them, or
// never; it is for dates alone. Thread-safe.
#pragma once

#include "absl/time/time.h"

namespace lockstep {

// CLOCK_MONOTONIC as if it had begun at the Unix epoch: to be compared with its own times only.
absl::Time SteadyNow();
// The moment that a wall clock time, gRPC's deadline of a call, means now. Infinite ones stay.
absl::Time SteadyTimeOf(absl::Time wall);

}  // namespace lockstep
