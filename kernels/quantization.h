// Weights in 8 or 4 bits with a scale per group or row, and the plain code that says how numbers
// become such. Pure; any thread. What a product with them computes is written at Backend::Linear.
//
// A group is a run of consecutive k of one row. Groups are counted from the beginning of each
// K-slice (LinearShape), the last of a slice may be short: every rank of a tensor parallel layout
// sees the same groups. Scales are bf16: against f32 they cost no accuracy that can be measured
// (values are rounded against the rounded scale) and 4-bit weights 10 % less memory to read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "kernels/dtype.h"

namespace lockstep {

// kInt8: groups of 64, q in [-127, 127], 8.25 bits a weight. kInt4: groups of 32, q in [-8, 7], 4.5
// bits a weight. What follows in this file is about these two.
//
// kFp8: q of the format e4m3 (Micikevicius et al. 2022, "FP8 formats for deep learning"), an f32
// scale per row, amax / 448, so that a weight is q * scale; x likewise per token while products
// run, by LinearShape::activation_bound / 448 at most. On GPUs only (kernels/cuda/fp8.cu), of
// compute capability 8.9 and later.
enum class Quantization : uint8_t { kNone, kInt8, kInt4, kFp8 };

inline constexpr int kMaxQuantizedGroup = 64;
inline constexpr float kNoActivationBound = std::numeric_limits<float>::infinity();

constexpr int QuantizedGroup(Quantization quantization) {
  return quantization == Quantization::kInt4 ? 32 : 64;
}
constexpr int QuantizedBits(Quantization quantization) {
  return quantization == Quantization::kInt4 ? 4 : 8;
}
// What is added to q where it is stored without a sign: 128 or 8.
constexpr int QuantizedZero(Quantization quantization) {
  return 1 << (QuantizedBits(quantization) - 1);
}
// "none", "int8", "int4", "fp8", as options and messages have it.
std::string_view QuantizationName(Quantization quantization);
std::optional<Quantization> QuantizationOf(std::string_view name);

// Whether a weight of this shape can be kFp8: multiples of 16 are what cuBLASLt asks for.
constexpr bool SuitsFp8(int64_t out_features, int64_t in_features) {
  return out_features % 16 == 0 && in_features % 16 == 0;
}

// How the K-slices of one row, each slice_k long, fall into groups.
struct QuantizedGroups {
  int64_t slice_k = 0;
  int group = kMaxQuantizedGroup;

  int64_t per_slice() const { return (slice_k + group - 1) / group; }
  // Of the slice's i-th group.
  int size(int64_t i) const {
    return static_cast<int>(std::min<int64_t>(group, slice_k - i * group));
  }
};

// Memory of num_rows rows of num_slices slices, scales included, without padding.
int64_t QuantizedBytes(Quantization quantization, int64_t num_rows, int64_t slice_k,
                       int64_t num_slices);

// One group of weights, count in [1, kMaxQuantizedGroup], to q[count]; returns the scale. A weight
// is then q * scale.
//
// amax = largest magnitude. If it is below 2^-100: scale and all q are 0. If one of the weights is
// not finite: the scale is NaN and all q are 0. Else with q_k = w_k * (1 / scale) rounded to
// nearest even and clamped:
//   int8: scale = bf16(amax / 127).
//   int4: m = the first weight of magnitude amax, with its sign; scale is that of bf16(m / -8),
//   bf16(m / -7.5) and bf16(m / -8.5) which leaves the smallest sum of squared errors (of equals
//   the first), the sum taken in f32 over e = w - q * scale (rounded twice) as e * e in 16 lanes
//   (lane = k mod 16, ascending), lanes added as a binary tree of neighbours. On normal weights the
//   error is 0.083 of their standard deviation, 4 % less than with m / -8 alone.
BF16 QuantizeWeightGroup(const float* w, int count, Quantization quantization, int8_t* q);

// One group of activations: q = x * (127 / amax) rounded to nearest even, in [-127, 127]; returns
// the scale, amax / 127. Small and non-finite groups as above.
float QuantizeActivationGroup(const float* x, int count, int8_t* q);

}  // namespace lockstep
