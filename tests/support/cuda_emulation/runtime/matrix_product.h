// D = alpha op(A) op(B) + beta C as cuBLASLt's algorithms might add it up.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace lockstep::cuda_emulation {

struct Matrix {
  cudaDataType type = CUDA_R_32F;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t ld = 0;  // column-major
  int32_t batch_count = 1;
  int64_t batch_stride = 0;  // elements
  bool transposed = false;

  int64_t op_rows() const { return transposed ? columns : rows; }
  int64_t op_columns() const { return transposed ? rows : columns; }
  // From the first element to behind the last.
  int64_t span_bytes() const;
};
int64_t BytesPerElement(cudaDataType type);
// 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities, one NaN (Micikevicius et al., "FP8
// formats for deep learning", section 3).
float FromE4m3(uint8_t bits);

// How the terms of one element are added.
struct Summation {
  int num_splits = 1;              // of K, each into its own part of the workspace
  int num_lanes = 16;              // sums side by side within a split: 8, 16 or 32
  bool adds_in_output = false;     // splits' parts, in D's type
  int64_t other_from = INT64_MAX;  // columns of D from there on have another number of lanes
};

struct Product {
  Matrix a, b, c, d;
  float alpha = 1;
  float beta = 0;
  const void* a_data = nullptr;
  const void* b_data = nullptr;
  const void* c_data = nullptr;
  void* d_data = nullptr;
  const float* a_scale = nullptr;  // null: 1
  const float* b_scale = nullptr;
  bool scales_are_vectors = false;  // by row of op(A), by column of op(B)
  bool is_fast = false;             // of e4m3: accumulated in fewer bits (here in as many)
  Summation summation;
  float* workspace = nullptr;  // num_splits x rows x columns of D when there are several splits

  int64_t rows() const { return a.op_rows(); }
  int64_t columns() const { return b.op_columns(); }
  int64_t depth() const { return a.op_columns(); }
};

void Compute(const Product& product);

}  // namespace lockstep::cuda_emulation
