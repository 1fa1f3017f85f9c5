// When to try again after a server went away: soon, then less and less often, for a while. Pure.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "grpcpp/support/status_code_enum.h"

namespace lockstep {

class RetryClock {
 public:
  static constexpr absl::Duration kFirstDelay = absl::Milliseconds(50);
  static constexpr absl::Duration kMaxDelay = absl::Seconds(1);

  // patience: from the first failure of a row on; 0 = none.
  explicit RetryClock(absl::Duration patience) : patience_(patience) {}

  // A try failed: when the next is due, or nullopt when the patience is over.
  std::optional<absl::Time> Failed(absl::Time now);
  // The server is back: the next failure is the first of its row.
  void Succeeded() { failing_since_.reset(); }
  bool failing() const { return failing_since_.has_value(); }

 private:
  const absl::Duration patience_;
  std::optional<absl::Time> failing_since_;
  absl::Duration delay_;
};

// Whether a stream that ended so may go on: its server went away, or is back, and has no room for
// all who come back at once.
bool MayGoOn(grpc::StatusCode ended, const RetryClock& clock);

}  // namespace lockstep
