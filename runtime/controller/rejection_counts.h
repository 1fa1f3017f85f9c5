// How many requests were refused, and why: a client's mistakes alarm nobody else. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

class RejectionCounts {
 public:
  // code: what the client was told.
  void Count(absl::StatusCode code);
  // Sets requests_rejected and rejections.
  void AddTo(v1::GetStatusResponse& status) const;

 private:
  std::atomic<uint64_t> num_invalid_{0};
  std::atomic<uint64_t> num_overload_{0};
  std::atomic<uint64_t> num_unavailable_{0};
};

}  // namespace lockstep
