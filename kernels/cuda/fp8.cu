// Rows in e4m3 with a scale each, and what such scales make of a product.
//
// Memory-bound: quantizing reads x once and writes a byte a number; scaling reads and writes y
// once.
#include "kernels/cuda/e4m3_row.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
// Vectors of a row that a thread keeps; what a longer row has beyond them is read again.
constexpr int kKept = 4;

// A block to a row.
template <int n, typename T>
__global__ void __launch_bounds__(1024)
    QuantizeRows(const T* x, int64_t width, uint8_t* q, float* scales) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
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
  const E4m3Scale scale(BlockMax(largest));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.value();
  uint8_t* const to = q + int64_t{blockIdx.x} * width;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (column(j) < width) scale.Store(to + column(j), kept[j]);
  }
  for (int64_t j = kKept; column(j) < width; ++j) {
    scale.Store(to + column(j), Load<n>(row + column(j)));
  }
}

template <typename T>
__global__ void ScaleRowsAndColumns(T* y, int64_t count, int64_t num_columns,
                                    const float* row_scales, const float* column_scales) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  Floats<1> x = Load<1>(y + i);
  x.of[0] *= row_scales[i / num_columns] * column_scales[i % num_columns];
  Store(y + i, x);
}

}  // namespace

cudaError_t LaunchQuantizeFp8(const void* x, DType x_dtype, int64_t num_rows, int64_t width,
                              uint8_t* q, float* scales, const KernelStream& stream) {
  if (num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(num_rows));
  return WithVectors(Vectorises(width, {x, q}), [&](auto n) {
    return WithType(x_dtype, [&](auto element) {
      using T = decltype(element);
      return LaunchOverlapping(QuantizeRows<n, T>, grid,
                               dim3(RowThreads(CeilDiv<int64_t>(width, n))), 0, stream,
                               static_cast<const T*>(x), width, q, scales);
    });
  });
}

cudaError_t LaunchScaleRowsAndColumns(const ProductRows& y, const float* row_scales,
                                      const float* column_scales, const KernelStream& stream) {
  const int64_t count = y.num_rows * y.num_columns;
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(count, kThreads)));
  return WithProductType(y.dtype, [&](auto element) {
    using T = decltype(element);
    return LaunchOverlapping(ScaleRowsAndColumns<T>, grid, dim3(kThreads), 0, stream,
                             static_cast<T*>(y.data), count, y.num_columns, row_scales,
                             column_scales);
  });
}

}  // namespace lockstep::cuda
