// What the parts of gpu_bench share.
#pragma once

#include <chrono>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/base/check.h"

namespace lockstep::bench {

inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Ends the process on errors.
template <typename T>
T Value(absl::StatusOr<T> value) {
  LS_CHECK(value.ok()) << value.status();
  return *std::move(value);
}

}  // namespace lockstep::bench
