// What the kernels are written in, beyond CUDA C++: launching, sums over warps and blocks, narrow
// numbers.
#pragma once

#include <cuda_runtime.h>
#include <device_instructions.cuh>

#include <cstdint>
#include <utility>

#include "kernels/cuda/kernel_stream.h"
#include "kernels/dtype.h"

namespace lockstep::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

template <typename T>
__host__ __device__ constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

// Divides numbers from 0 to 2^31 - 1 by one that the host knows: a multiplication where a division
// takes some twenty instructions. (Granlund and Montgomery 1994, theorem 4.2: with l bits in
// divisor - 1 the multiplier is 2^(31 + l) / divisor, rounded up, of at most 32 bits.)
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int divisor) {
    while (divisor > int64_t{1} << bits_) ++bits_;
    const uint64_t power = uint64_t{1} << (31 + bits_);
    multiplier_ = static_cast<uint32_t>((power + divisor - 1) / divisor);
  }
  friend __device__ inline int operator/(int number, const Divisor& divisor) {
    const uint64_t product = uint64_t{static_cast<uint32_t>(number) * 2} * divisor.multiplier_;
    return static_cast<int>(static_cast<uint32_t>(product >> 32) >> divisor.bits_);
  }

 private:
  uint32_t multiplier_ = uint32_t{1} << 31;  // of 1
  int bits_ = 0;
};

// A kernel that overlaps where the stream's may and it is not held (kernel_stream.h).
// Arguments are converted to the kernel's parameter types.
//
// A multiprocessor's first-level cache and shared memory are one, and how it is divided changes
// only while no block is there: kernels that are to run side by side all ask for the division that
// those with most shared memory need. What is read here once needs no cache. Source: CUDA C++
// Programming Guide, "Shared Memory" of compute capabilities 7.x and later.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchOverlapping(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                              size_t shared_bytes, const KernelStream& stream,
                              Arguments&&... arguments) {
  const bool overlaps = !stream.TakeHold() && stream.overlaps;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = overlaps ? 1 : 0;
  if (stream.overlaps) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
  }
  return cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...);
}
// A kernel that begins when all that was issued to the stream before is done.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   const KernelStream& stream, Arguments&&... arguments) {
  stream.TakeHold();
  return LaunchOverlapping(kernel, grid, block, shared_bytes, KernelStream(stream.stream),
                           std::forward<Arguments>(arguments)...);
}

__device__ inline float WarpSum(float value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, offset);
  }
  return value;
}
__device__ inline float WarpMax(float value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, offset));
  }
  return value;
}

// The sum over all threads of a block of whole warps, the same on every thread; additions in an
// order that depends on the block's size alone.
__device__ inline float BlockSum(float value) {
  __shared__ float of_warp[kWarpSize];
  const int lane = threadIdx.x % kWarpSize;
  const int warps = blockDim.x / kWarpSize;
  value = WarpSum(value);
  if (lane == 0) of_warp[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const float sum = WarpSum(lane < warps ? of_warp[lane] : 0.0f);
  __syncthreads();  // of_warp may be written again
  return sum;
}

__device__ inline float Widen(float value) { return value; }
__device__ inline float Widen(BF16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
// To BF16 or F16.
template <typename T>
__device__ T Narrow(float value) {
  return T{static_cast<uint16_t>(Pack<T>(value, 0.0f))};
}

}  // namespace lockstep::cuda
