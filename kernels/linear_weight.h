// A matrix as a backend multiplies by it, and the rows that it is filled with.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/quantization.h"

namespace lockstep {

// y = x W^T with W [out_features, in_features]. dtype is how the weights are kept: kF32 or kBF16,
// kF16 where Backend::HoldsF16 (elsewhere f16 checkpoints are widened to f32 or, on request,
// rounded to bf16 while filling); or, when quantization is not kNone, the weights are kept in 8 or
// 4 bits and dtype is of no matter.
struct LinearShape {
  int64_t out_features = 0;
  int64_t in_features = 0;
  DType dtype = DType::kF32;
  // in_features is cut into this many equal K-slices; each is accumulated on its own and the
  // partial sums are added in a binary tree of neighbours ((s0+s1)+(s2+s3))+... A rank that owns a
  // power-of-two share of the slices thus computes a subtree of the whole sum. in_features must be
  // divisible by it.
  int num_k_slices = 1;
  Quantization quantization = Quantization::kNone;
  // kFp8: where a row of x is quantized, its largest magnitude is taken for no more than this,
  // above 0; what is beyond becomes the largest of e4m3. One outlier then does not cost the rest of
  // its row their bits, or all that they are. (FBGEMM's scale_ub; of other formats of no matter.)
  float activation_bound = kNoActivationBound;
};

// A weight matrix in the backend's own packed layout.
//
// What Backend::Linear adds up, and in which order. bf16 weights: x is rounded to bf16 first (to
// nearest even). Within one K-slice each output element accumulates in f32 with fused multiply-add
// in one order: f32 weights k = 0, 1, 2, ...; bf16 weights in pairs, odd element then even: k = 1,
// 0, 3, 2, ... (the order of the vdpbf16ps instruction, Intel SDM vol. 2), a missing last odd
// element of a slice counting as zero; denormal inputs and results of that accumulation are flushed
// to zero. Slices are combined as LinearShape says, with ordinary additions (ranks go on adding
// where this stops).
//
// Quantized weights: x is quantized by QuantizeActivationGroup, per token and per group of the
// weight (kernels/quantization.h). A group's dot product of both q is an integer, exact below
// 2^24, hence of no order; within a K-slice, from 0 and over groups ascending,
//   sum = fma(float(dot), x_scale * w_scale, sum)
// without flushing denormals. A token with a number that is not finite in a group gets NaN in
// every output; a group of weights likewise in its output.
class LinearWeight {
 public:
  explicit LinearWeight(const LinearShape& shape) : shape_(shape) {}
  virtual ~LinearWeight() = default;
  const LinearShape& shape() const { return shape_; }
  virtual int64_t bytes() const = 0;  // memory held, padding included

 private:
  LinearShape shape_;
};

// The most that products by quantized weights multiply in a step. Widths are in_features of the
// widest weight, 0 where there is none.
struct ProductInputs {
  int64_t num_rows = 0;
  int64_t width = 0;           // of rows that name no consumer
  int64_t consumer_width = 0;  // of those that do (RmsNormArgs::consumer)
};

// What rows for a quantized weight hold: numbers to be quantized; or what QuantizeWeightGroup made
// of them, in two parts that may come in any order:
//   kQuantized: q + QuantizedZero, or kFp8's finite e4m3 numbers, in_features bytes to a row (dtype
//   is of no matter);
//   kScales: one number of dtype per group, K-slice after K-slice; one to a row of kFp8, finite.
enum class RowContent : uint8_t { kValues, kQuantized, kScales };

// Rows as they lie in a checkpoint (host memory): num_rows rows of in_features elements,
// row_stride_bytes apart.
struct HostRows {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_rows = 0;
  int64_t row_stride_bytes = 0;
  RowContent content = RowContent::kValues;
  // They lie in memory of Backend::AllocateOnHost and stay as they are until a mark that is set
  // after the call is reached: what takes them may go on reading when it has returned.
  bool is_pinned = false;
};

}  // namespace lockstep
