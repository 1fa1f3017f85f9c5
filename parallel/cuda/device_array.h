// Memory of the current device, owned.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

struct DeviceDeleter {
  void operator()(void* memory) const { cudaFree(memory); }
};
template <typename T>
using DeviceArray = std::unique_ptr<T[], DeviceDeleter>;

// RESOURCE_EXHAUSTED or UNAVAILABLE, saying for what.
template <typename T>
absl::StatusOr<DeviceArray<T>> AllocateOnDevice(int64_t count, const char* what) {
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)), what));
  return DeviceArray<T>(static_cast<T*>(memory));
}

}  // namespace lockstep::cuda
