// How long an all-reduce takes, for choosing between two ways of doing it when a group is made.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"

namespace lockstep {

// Median seconds of this rank for one token's sums of a large model (16 KiB of f32). Every rank of
// the group calls it alike. As often as a start does not notice: some 5 to 50 us a time where every
// rank has a core. The all-reduce's errors.
absl::StatusOr<float> TryAllReduce(
    const std::function<absl::Status(float* data, int64_t count)>& all_reduce);

}  // namespace lockstep
