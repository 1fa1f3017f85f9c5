// What the parts of gpu_bench share.
#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/check.h"
#include "tests/bench/timing.h"

namespace lockstep::bench {

// Ends the process on errors.
template <typename T>
T Value(absl::StatusOr<T> value) {
  LS_CHECK(value.ok()) << value.status();
  return *std::move(value);
}

}  // namespace lockstep::bench
