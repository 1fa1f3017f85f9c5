#include "kernels/base/steady_clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace lockstep {

absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Time SteadyTimeOf(absl::Time wall) { return SteadyNow() + (wall - absl::Now()); }

}  // namespace lockstep
