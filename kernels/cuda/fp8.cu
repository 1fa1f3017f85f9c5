// Rows in e4m3 with a scale each, and what such scales make of a product.
//
// Memory-bound: quantizing reads x twice (the second time from the cache) and writes a byte a
// number; scaling reads and writes y once.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr float kLargestE4m3 = 448.0f;
constexpr int kThreads = 256;

// A block to a row. The largest magnitude is the same in any order.
template <typename T>
__global__ void QuantizeRows(const T* x, int64_t width, uint8_t* q, float* scales) {
  const T* row = x + int64_t{blockIdx.x} * width;
  float largest = 0.0f;
  bool is_finite = true;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float magnitude = fabsf(Widen(row[i]));
    is_finite = is_finite && magnitude <= 3.402823466e38f;  // false for NaN
    largest = fmaxf(largest, magnitude);
  }
  __shared__ float of_warp[kThreads / kWarpSize];
  if (!is_finite) largest = __uint_as_float(0x7f800000u);
  largest = WarpMax(largest);
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  largest = 0.0f;
  for (int warp = 0; warp < kThreads / kWarpSize; ++warp) largest = fmaxf(largest, of_warp[warp]);
  const bool is_number = largest <= 3.402823466e38f;
  const float scale = largest / kLargestE4m3;
  // Of denormal rows the scale would have no inverse: they are zeros.
  const float inverse = is_number && scale >= 0x1p-120f ? 1.0f / scale : 0.0f;
  if (threadIdx.x == 0) {
    scales[blockIdx.x] = is_number ? (inverse > 0.0f ? scale : 0.0f) : __uint_as_float(0x7fc00000u);
  }
  auto* pairs = reinterpret_cast<uint16_t*>(q + int64_t{blockIdx.x} * width);
  for (int64_t i = threadIdx.x; i < width / 2; i += blockDim.x) {
    pairs[i] = inverse > 0.0f
                   ? PackE4m3(Widen(row[2 * i]) * inverse, Widen(row[2 * i + 1]) * inverse)
                   : uint16_t{0};
  }
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
  return WithType(x_dtype, [&](auto element) {
    using T = decltype(element);
    return Launch(QuantizeRows<T>, grid, dim3(kThreads), 0, stream, static_cast<const T*>(x), width,
                  q, scales);
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
