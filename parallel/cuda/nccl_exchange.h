// Every rank of a group sends each other one a part of its own, at once: work of one stream, like
// the group's other calls (parallel/cuda/nccl_communicator.h).
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "parallel/cuda/nccl_group.h"

namespace lockstep::cuda {

// `bytes` at from + r * from_stride go to rank r, whose own come to to + r * to_stride. Nothing
// overlaps.
struct ExchangedParts {
  const std::byte* from = nullptr;
  int64_t from_stride = 0;  // bytes, as the next two
  std::byte* to = nullptr;
  int64_t to_stride = 0;
  int64_t bytes = 0;
  bool with_own = false;  // else what a rank has for itself stays where it is
};
// Errors: NcclGroup::Launch's.
absl::Status LaunchExchange(NcclGroup& group, const ExchangedParts& parts,
                            std::chrono::milliseconds patience, cudaStream_t stream);

}  // namespace lockstep::cuda
