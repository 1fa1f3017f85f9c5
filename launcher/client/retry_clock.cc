#include "launcher/client/retry_clock.h"

#include <algorithm>

namespace lockstep {

std::optional<absl::Time> RetryClock::Failed(absl::Time now) {
  if (!failing_since_) {
    failing_since_ = now;
    delay_ = kFirstDelay;
  }
  if (now + delay_ > *failing_since_ + patience_) return std::nullopt;
  const absl::Time next = now + delay_;
  delay_ = std::min(2 * delay_, kMaxDelay);
  return next;
}

bool MayGoOn(grpc::StatusCode ended, const RetryClock& clock) {
  return ended == grpc::StatusCode::UNAVAILABLE ||
         (ended == grpc::StatusCode::RESOURCE_EXHAUSTED && clock.failing());
}

}  // namespace lockstep
