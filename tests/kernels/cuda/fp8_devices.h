// What tests of fp8 say on GPUs that do not multiply it.
#pragma once

#include <cuda_runtime.h>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"

namespace lockstep::testing {

// By what the driver tells, not by what is tested.
inline bool DeviceMultipliesFp8() {
  cudaDeviceProp device = {};
  EXPECT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  return 10 * device.major + device.minor >= cuda::CudaBackend::kFp8Capability;
}

}  // namespace lockstep::testing

// The reason is one that tests/gpu/run.sh expects of such GPUs, and of no others.
#define SKIP_WITHOUT_FP8() \
  if (!::lockstep::testing::DeviceMultipliesFp8()) GTEST_SKIP() << "a GPU without fp8"
