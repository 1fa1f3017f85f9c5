// CUDA's errors as ours. What the driver refuses at start-up is told; what fails later, when all
// sizes are known to be right, has broken an invariant (or the device) and ends the process.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace lockstep::cuda {

inline absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  if (error == cudaErrorInvalidValue) return absl::InvalidArgumentError(text);
  return absl::UnavailableError(text);
}

// Of a GPU that work will be issued to: where it lies on the bus, for what CudaCheck says, as CUDA
// may answer nothing any more once a device has failed.
void TakeNoteOfGpu(int device);

// Ends the process, naming the thread's GPU.
[[noreturn]] void FailOnGpu(cudaError_t error, const char* what);

inline void CudaCheck(cudaError_t error, const char* what) {
  if (error != cudaSuccess) FailOnGpu(error, what);
}

}  // namespace lockstep::cuda
