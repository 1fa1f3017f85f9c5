// What tests of fp8 share: what they say on GPUs that do not multiply it, and how products get
// their memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/workspaces.h"

namespace lockstep::testing {

// By what the driver tells, not by what is tested.
inline bool DeviceMultipliesFp8() {
  cudaDeviceProp device = {};
  EXPECT_EQ(cudaGetDeviceProperties(&device, 0), cudaSuccess);
  return 10 * device.major + device.minor >= cuda::CudaBackend::kFp8Capability;
}

// A weight in kFp8, and memory for products of up to so many rows by it.
inline std::unique_ptr<LinearWeight> Fp8Weight(Backend& backend, LinearShape shape,
                                               int64_t most_rows) {
  shape.quantization = Quantization::kFp8;
  const int64_t bytes = backend.ProductBytes({.num_rows = most_rows, .width = shape.in_features});
  EXPECT_EQ(backend.ReserveForProducts(bytes), absl::OkStatus());
  auto weight = backend.AllocateLinear(shape);
  EXPECT_TRUE(weight.ok()) << weight.status();
  return *std::move(weight);
}

// For Gemm::QuantizeIn.
inline DeviceBuffer MemoryForRows(int64_t num_rows, int64_t width) {
  const int64_t bytes = cuda::E4m3RowsBytes(num_rows, width);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, static_cast<size_t>(bytes)), cudaSuccess);
  return {std::shared_ptr<void>(memory, [](void* p) { cudaFree(p); }), bytes};
}

}  // namespace lockstep::testing

// The reason is one that tests/gpu/run.sh expects of such GPUs, and of no others.
#define SKIP_WITHOUT_FP8() \
  if (!::lockstep::testing::DeviceMultipliesFp8()) GTEST_SKIP() << "a GPU without fp8"
