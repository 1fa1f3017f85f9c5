// Rows in e4m3 with a scale each, and what such scales make of a product.
//
// Memory-bound: quantizing reads x once and writes a byte a number; scaling reads and writes y
// once.
#include <algorithm>

#include "kernels/cuda/e4m3_row.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
// Vectors of a row that a thread keeps; what a longer row has beyond them is read again.
constexpr int kKept = 4;
// Rows of a product that a thread scales together.
constexpr int kScaledRows = 4;

// A block to a row.
template <int n, typename T>
__global__ void __launch_bounds__(1024) QuantizeRows(const T* x, int64_t width, E4m3Rows out) {
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
  const E4m3Scale scale(BlockMax(largest), out.most_scale);
  if (threadIdx.x == 0) out.scales[blockIdx.x] = scale.value();
  uint8_t* const to = out.q + int64_t{blockIdx.x} * width;
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    if (column(j) < width) scale.Store(to + column(j), kept[j]);
  }
  for (int64_t j = kKept; column(j) < width; ++j) {
    scale.Store(to + column(j), Load<n>(row + column(j)));
  }
}

// A block of the grid for some rows and a stretch of their columns, whose scales are read once for
// all of them; column strides over what is left.
template <int n, typename T>
__global__ void __launch_bounds__(kThreads)
    ScaleRowsAndColumns(T* y, int64_t num_rows, int64_t num_columns, const float* row_scales,
                        const float* column_scales) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const int64_t first = int64_t{blockIdx.x} * kScaledRows;
  const int rows = static_cast<int>(min(num_rows - first, int64_t{kScaledRows}));
  const int64_t stride = int64_t{gridDim.y} * kThreads * n;
#pragma unroll 1  // or its turns are counted by a division
  for (int64_t i = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * n; i < num_columns;
       i += stride) {
    T* const at = y + first * num_columns + i;
    const Floats<n> of_columns = Load<n>(column_scales + i);
    Floats<n> x[kScaledRows];
    float of_row[kScaledRows];
#pragma unroll
    for (int row = 0; row < kScaledRows; ++row) {  // all reads are under way before the first write
      if (row >= rows) continue;
      x[row] = Load<n>(at + row * num_columns);
      of_row[row] = row_scales[first + row];
    }
#pragma unroll
    for (int row = 0; row < kScaledRows; ++row) {
      if (row >= rows) continue;
#pragma unroll
      for (int e = 0; e < n; ++e) x[row].of[e] *= of_row[row] * of_columns.of[e];
      Store(at + row * num_columns, x[row]);
    }
  }
}

}  // namespace

cudaError_t LaunchQuantizeFp8(const void* x, DType x_dtype, int64_t num_rows, int64_t width,
                              const E4m3Rows& out, const KernelStream& stream) {
  if (num_rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(num_rows));
  return WithVectors(Vectorises(width, {x, out.q}), [&](auto n) {
    return WithType(x_dtype, [&](auto element) {
      using T = decltype(element);
      return LaunchOverlapping(QuantizeRows<n, T>, grid,
                               dim3(RowThreads(CeilDiv<int64_t>(width, n))), 0, stream,
                               static_cast<const T*>(x), width, out);
    });
  });
}

cudaError_t LaunchScaleRowsAndColumns(const ProductRows& y, const float* row_scales,
                                      const float* column_scales, const KernelStream& stream) {
  if (y.num_rows == 0 || y.num_columns == 0) return cudaSuccess;
  constexpr int64_t kMostStretches = 65535;  // of a grid's second dimension
  return WithVectors(Vectorises(y.num_columns, {y.data, column_scales}), [&](auto n) {
    const int64_t stretches = CeilDiv<int64_t>(y.num_columns, kThreads * n);
    const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(y.num_rows, kScaledRows)),
                    static_cast<unsigned>(std::min(stretches, kMostStretches)));
    return WithProductType(y.dtype, [&](auto element) {
      using T = decltype(element);
      return LaunchOverlapping(ScaleRowsAndColumns<n, T>, grid, dim3(kThreads), 0, stream,
                               static_cast<T*>(y.data), y.num_rows, y.num_columns, row_scales,
                               column_scales);
    });
  });
}

}  // namespace lockstep::cuda
