// Rows in e4m3 with a scale each, and what such scales make of a product.
//
// Memory-bound: quantizing reads x once and writes a byte a number; scaling reads and writes y
// once.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr float kLargestE4m3 = 448.0f;
constexpr unsigned kInfinity = 0x7f800000u;
constexpr unsigned kNan = 0x7fc00000u;
constexpr int kThreads = 256;
// Vectors of a row that a thread keeps; what a longer row has beyond them is read again.
constexpr int kKept = 4;

// A magnitude's bits: as numbers they are in the same order, infinity above all, NaN above that.
template <int n>
__device__ unsigned LargestOf(const Floats<n>& x, unsigned largest) {
#pragma unroll
  for (int e = 0; e < n; ++e) largest = max(largest, __float_as_uint(x.of[e]) & 0x7fffffffu);
  return largest;
}

// Of all threads, on every one.
__device__ unsigned BlockMax(unsigned value) {
  __shared__ unsigned of_warp[kWarpSize];
  const auto warp_max = [](unsigned x) {
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      x = max(x, __shfl_xor_sync(kWholeWarp, x, offset));
    }
    return x;
  };
  value = warp_max(value);
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarpSize;
  return warp_max(lane < blockDim.x / kWarpSize ? of_warp[lane] : 0u);
}

template <int n>
__device__ void StoreE4m3(uint8_t* to, const Floats<n>& x, float factor) {
  if constexpr (n == kVectorElements) {
    const uint32_t low = PackE4m3(x.of[0] * factor, x.of[1] * factor);
    const uint32_t high = PackE4m3(x.of[2] * factor, x.of[3] * factor);
    *reinterpret_cast<uint32_t*>(to) = low | high << 16;
  } else {
    *to = static_cast<uint8_t>(PackE4m3(x.of[0] * factor, 0.0f));
  }
}

// A block to a row. The largest magnitude is the same in any order.
template <int n, typename T>
__global__ void __launch_bounds__(1024)
    QuantizeRows(const T* x, int64_t width, uint8_t* q, float* scales) {
  const T* row = x + int64_t{blockIdx.x} * width;
  const auto column = [](int64_t j) { return (j * blockDim.x + threadIdx.x) * n; };
  Floats<n> kept[kKept];
#pragma unroll
  for (int j = 0; j < kKept; ++j) {  // all reads are under way before the first is needed
    if (column(j) < width) kept[j] = Load<n>(row + column(j));
  }
  unsigned largest = 0;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (column(j) < width) largest = LargestOf(kept[j], largest);
  }
  for (int64_t j = kKept; column(j) < width; ++j) {
    largest = LargestOf(Load<n>(row + column(j)), largest);
  }
  largest = BlockMax(largest);
  const bool is_finite = largest < kInfinity;
  const float scale = __uint_as_float(largest) / kLargestE4m3;
  // Of denormal rows the scale would have no inverse: they are zeros.
  const float inverse = is_finite && scale >= 0x1p-120f ? 1.0f / scale : 0.0f;
  if (threadIdx.x == 0) {
    scales[blockIdx.x] = is_finite ? (inverse > 0.0f ? scale : 0.0f) : __uint_as_float(kNan);
  }
  uint8_t* const to = q + int64_t{blockIdx.x} * width;
  const auto store = [&](const Floats<n>& numbers, int64_t at) {
    StoreE4m3(to + at, inverse > 0.0f ? numbers : Floats<n>{}, inverse);
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (column(j) < width) store(kept[j], column(j));
  }
  for (int64_t j = kKept; column(j) < width; ++j) store(Load<n>(row + column(j)), column(j));
}

__global__ void ScaleRowsAndColumns(float* y, int64_t count, int64_t num_columns,
                                    const float* row_scales, const float* column_scales) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) y[i] *= row_scales[i / num_columns] * column_scales[i % num_columns];
}

}  // namespace

cudaError_t LaunchQuantizeFp8(const void* x, DType x_dtype, int64_t num_rows, int64_t width,
                              uint8_t* q, float* scales, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(num_rows));
  return WithVectors(Vectorises(width, {x, q}), [&](auto n) {
    return WithType(x_dtype, [&](auto element) {
      using T = decltype(element);
      return Launch(QuantizeRows<n, T>, grid, dim3(RowThreads(CeilDiv<int64_t>(width, n))), 0,
                    stream, static_cast<const T*>(x), width, q, scales);
    });
  });
}

cudaError_t LaunchScaleRowsAndColumns(float* y, int64_t num_rows, int64_t num_columns,
                                      const float* row_scales, const float* column_scales,
                                      cudaStream_t stream) {
  const int64_t count = num_rows * num_columns;
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(count, kThreads)));
  return Launch(ScaleRowsAndColumns, grid, dim3(kThreads), 0, stream, y, count, num_columns,
                row_scales, column_scales);
}

}  // namespace lockstep::cuda
