// ReferenceBackend's weights of 8 and 4 bits: the specification of products with them, in the
// plainest loops that say it.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/linear_shape.h"
#include "kernels/dtype.h"
#include "kernels/linear_weight.h"
#include "kernels/quantization.h"

namespace lockstep::cpu {

// Quantized group by group; q row-major, a scale per row, slice and group.
class PlainQuantizedWeight final : public LinearWeight {
 public:
  explicit PlainQuantizedWeight(const LinearShape& shape)
      : LinearWeight(shape),
        groups_{shape.in_features / shape.num_k_slices, QuantizedGroup(shape.quantization)},
        q_(static_cast<size_t>(shape.out_features * shape.in_features)),
        scales_(
            static_cast<size_t>(shape.out_features * shape.num_k_slices * groups_.per_slice())) {}
  int64_t bytes() const override {
    return QuantizedBytes(shape().quantization, shape().out_features, groups_.slice_k,
                          shape().num_k_slices);
  }

  void FillRow(int64_t n, const char* row, const HostRows& rows) {
    const int64_t num_groups = shape().num_k_slices * groups_.per_slice();
    for (int64_t i = 0; i < num_groups; ++i) {
      BF16& scale = scales_[static_cast<size_t>(n * num_groups + i)];
      const int64_t k = FirstK(i);
      int8_t* q = &q_[static_cast<size_t>(n * shape().in_features + k)];
      const int count = groups_.size(i % groups_.per_slice());
      if (rows.content == RowContent::kScales) {
        scale = ToBF16(HostElement(row, rows.dtype, i));
      } else if (rows.content == RowContent::kQuantized) {
        for (int j = 0; j < count; ++j) {
          const int stored = static_cast<uint8_t>(row[k + j]);
          q[j] = static_cast<int8_t>(stored - QuantizedZero(shape().quantization));
        }
      } else {
        std::vector<float> values;
        for (int j = 0; j < count; ++j) {
          values.push_back(HostElement(row, rows.dtype, k + j));
        }
        scale = QuantizeWeightGroup(values.data(), count, shape().quantization, q);
      }
    }
  }

  // One K-slice of one output element.
  float Slice(int64_t n, const float* x, int slice) const {
    float sum = 0.0f;
    for (int64_t g = 0; g < groups_.per_slice(); ++g) {
      const int64_t i = slice * groups_.per_slice() + g;
      const int64_t k = FirstK(i);
      const int count = groups_.size(g);
      int8_t x_q[kMaxQuantizedGroup];
      const float x_scale = QuantizeActivationGroup(x + k, count, x_q);
      const int8_t* q = &q_[static_cast<size_t>(n * shape().in_features + k)];
      int32_t dot = 0;
      for (int j = 0; j < count; ++j) dot += q[j] * x_q[j];
      const int64_t num_groups = shape().num_k_slices * groups_.per_slice();
      const float w_scale = ToFloat(scales_[static_cast<size_t>(n * num_groups + i)]);
      sum = std::fma(static_cast<float>(dot), x_scale * w_scale, sum);
    }
    return sum;
  }

 private:
  int64_t FirstK(int64_t i) const {
    return i / groups_.per_slice() * groups_.slice_k + i % groups_.per_slice() * groups_.group;
  }

  QuantizedGroups groups_;
  std::vector<int8_t> q_;
  std::vector<BF16> scales_;
};

}  // namespace lockstep::cpu
