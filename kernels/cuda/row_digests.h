// Whether two ways to multiply add up alike: made-up rows to multiply, and digests of the results'
// bits, which are compared instead of the results.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep::cuda {

// Made-up rows come again and again: row r is row r % kMadeUpRows, so that equal rows lie at the
// beginning, in the middle and at the end of a product's tiles, which are no multiple of it.
constexpr int64_t kMadeUpRows = 29;

// Numbers of either sign and of sizes from 2^-6 to 2^8: sums of their products are rounded in f32,
// and so depend on their order. (Of e4m3 those of fewer sizes have no more bits than f32 holds.)
struct MadeUpRows {
  void* data = nullptr;     // [num_rows, width] of dtype, or of e4m3 if there are scales
  float* scales = nullptr;  // [num_rows], or null
  DType dtype = DType::kF32;
  int64_t num_rows = 0;
  int64_t width = 0;
};
cudaError_t LaunchMakeUpRows(const MadeUpRows& rows, cudaStream_t stream);

// Two sums of hashes of a row's bits and where in it they are: rows that differ in a bit have the
// same one once in 2^64.
struct RowDigest {
  uint32_t of[2] = {};
  bool operator==(const RowDigest&) const = default;
};
// digests: [num_rows], of y [num_rows, width]. Memory-bound: reads y once.
cudaError_t LaunchDigestRows(const float* y, int64_t num_rows, int64_t width, RowDigest* digests,
                             cudaStream_t stream);

}  // namespace lockstep::cuda
