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

inline void CudaCheck(cudaError_t error, const char* what) {
  LS_CHECK(error == cudaSuccess) << what << ": " << cudaGetErrorString(error);
}

}  // namespace lockstep::cuda
