// The barrier of a group: a sum of one number of each rank, for which the host waits.
//
// Not part of a captured graph. One stream's work, like the group's other calls
// (parallel/cuda/nccl_communicator.h).
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernel_stream.h"
#include "parallel/cuda/device_array.h"
#include "parallel/cuda/nccl_group.h"

namespace lockstep::cuda {

class NcclBarrier {
 public:
  // patience: of launches. The group is left before this goes: its work uses what lies here.
  static absl::StatusOr<std::unique_ptr<NcclBarrier>> Create(NcclGroup& group,
                                                             const KernelStream& stream,
                                                             std::chrono::milliseconds patience);
  ~NcclBarrier();
  NcclBarrier(const NcclBarrier&) = delete;
  NcclBarrier& operator=(const NcclBarrier&) = delete;

  // Until all ranks' streams have come here; the group ends where that takes longer than patience.
  absl::Status Meet(std::chrono::milliseconds patience);
  // Ends the error of a barrier that is not reached; a literal.
  void set_advice(const char* advice) { advice_ = advice; }

 private:
  NcclBarrier(NcclGroup& group, const KernelStream& stream, std::chrono::milliseconds patience)
      : group_(group), stream_(stream), launch_patience_(patience) {}

  NcclGroup& group_;
  const KernelStream stream_;
  const std::chrono::milliseconds launch_patience_;
  DeviceArray<float> token_;  // [1]
  cudaEvent_t arrived_ = nullptr;
  const char* advice_ = "";
};

}  // namespace lockstep::cuda
