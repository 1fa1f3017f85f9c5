#include "kernels/cuda/row_digests.h"

#include <algorithm>

#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMostBlocks = 4096;
constexpr int kLanesToRow = 8;
constexpr int kRowsToBlock = kThreads / kLanesToRow;
constexpr int kUnrolled = 4;  // reads of a thread that are under way at a time

// MurmurHash3's last step (Appleby): every bit of the result depends on every bit of x.
__device__ inline uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ x >> 16;
}

// e4m3 has room for the sizes, and rounds.
__device__ inline float MadeUp(uint32_t hash) {
  const float mantissa = 1.0f + static_cast<float>(hash & 127) * 0x1p-7f;
  const float size = static_cast<float>(1 << (hash >> 8) % 14) * 0x1p-6f;
  return (hash >> 7 & 1) != 0 ? -mantissa * size : mantissa * size;
}

__device__ inline void Put(float* to, float value) { *to = value; }
__device__ inline void Put(BF16* to, float value) { *to = Narrow<BF16>(value); }
__device__ inline void Put(F16* to, float value) { *to = Narrow<F16>(value); }
__device__ inline void Put(uint8_t* to, float value) {
  *to = static_cast<uint8_t>(PackE4m3(value, 0.0f));
}

template <typename T>
__global__ void MakeUp(T* x, float* scales, int64_t num_rows, int64_t width) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < num_rows * width;
       i += stride) {
    const int64_t row = i / width;
    const auto column = static_cast<uint32_t>(i - row * width);
    const auto made_up_row = static_cast<uint32_t>(row % kMadeUpRows);
    Put(x + i, MadeUp(Mix(Mix(made_up_row + 1) + column)));
    if (scales != nullptr && column == 0) {
      scales[row] = 1.0f + static_cast<float>(made_up_row) * 0.0625f;
    }
  }
}

// Of the lanes that share a row.
__device__ inline uint32_t SumOverRow(uint32_t value) {
  for (int offset = kLanesToRow / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, offset);
  }
  return value;
}

// Some lanes to a row; those beyond the last read the last.
template <int n>
__global__ void __launch_bounds__(kThreads)
    DigestRows(const float* y, int64_t num_rows, int64_t width, RowDigest* digests) {
  const int64_t place = int64_t{blockIdx.x} * kRowsToBlock + threadIdx.x / kLanesToRow;
  const int64_t row = min(place, num_rows - 1);
  const int lane = threadIdx.x % kLanesToRow;
  const float* const numbers = y + row * width;
  uint32_t first = 0;
  uint32_t second = 0;
#pragma unroll kUnrolled
  for (int64_t i = lane * n; i < width; i += kLanesToRow * n) {
    const Floats<n> read = Load<n>(numbers + i);
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const uint32_t column = static_cast<uint32_t>(i) + e;
      const uint32_t hash = Mix(__float_as_uint(read.of[e]) ^ column * 0x9e3779b9u);
      first += hash;
      second += Mix(hash + column);
    }
  }
  first = SumOverRow(first);
  second = SumOverRow(second);
  if (lane == 0 && place < num_rows) digests[row] = {{first, second}};
}

template <typename T>
cudaError_t LaunchMakeUp(const MadeUpRows& rows, cudaStream_t stream) {
  const int64_t blocks = CeilDiv<int64_t>(rows.num_rows * rows.width, kThreads);
  if (blocks == 0) return cudaSuccess;
  return Launch(MakeUp<T>, dim3(static_cast<unsigned>(std::min(blocks, kMostBlocks))),
                dim3(kThreads), 0, stream, static_cast<T*>(rows.data), rows.scales, rows.num_rows,
                rows.width);
}

}  // namespace

cudaError_t LaunchMakeUpRows(const MadeUpRows& rows, cudaStream_t stream) {
  if (rows.scales != nullptr) return LaunchMakeUp<uint8_t>(rows, stream);
  if (rows.dtype == DType::kF32) return LaunchMakeUp<float>(rows, stream);
  return rows.dtype == DType::kF16 ? LaunchMakeUp<F16>(rows, stream)
                                   : LaunchMakeUp<BF16>(rows, stream);
}

cudaError_t LaunchDigestRows(const float* y, int64_t num_rows, int64_t width, RowDigest* digests,
                             cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(num_rows, kRowsToBlock)));
  return WithVectors(Vectorises(width, {y}), [&](auto n) {
    return Launch(DigestRows<n>, grid, dim3(kThreads), 0, stream, y, num_rows, width, digests);
  });
}

}  // namespace lockstep::cuda
