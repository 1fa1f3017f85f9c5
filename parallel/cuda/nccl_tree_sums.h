// Sums in the fixed tree of neighbours (parallel/communicator.h) of which NCCL only carries the
// parts: ranks send them to each other and a kernel of ours adds them up, which reads and writes
// them once more but sends no more bytes than a ring; short ones are gathered whole by everybody.
//
// Work of one stream, like the group's other calls (parallel/cuda/nccl_communicator.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/cuda/device_array.h"
#include "parallel/cuda/nccl_group.h"

namespace lockstep::cuda {

class NcclTreeSums {
 public:
  // Longer sums are cut into parts that fit the workspace. The group outlives it.
  static absl::StatusOr<std::unique_ptr<NcclTreeSums>> Create(NcclGroup& group, cudaStream_t stream,
                                                              int64_t workspace_bytes,
                                                              std::chrono::milliseconds patience);
  // As Communicator's.
  absl::Status AllReduce(float* data, int64_t count);
  absl::Status ReduceScatter(float* data, int64_t share);

 private:
  NcclTreeSums(NcclGroup& group, cudaStream_t stream, std::chrono::milliseconds patience)
      : group_(group), stream_(stream), patience_(patience) {}
  absl::Status Gather(const float* mine, int64_t count, float* all);
  absl::Status GatherAndSum(float* data, int64_t count);
  absl::Status Exchange(const float* data, int64_t share, int64_t begin, int64_t length);
  absl::Status SumParts(int64_t length, float* own);

  NcclGroup& group_;
  const cudaStream_t stream_;
  const std::chrono::milliseconds patience_;
  int64_t chunk_ = 0;             // floats of each rank
  DeviceArray<float> workspace_;  // [size, chunk]
};

}  // namespace lockstep::cuda
