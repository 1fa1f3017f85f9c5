// Weights of linear layers on the CPU, in panels of output features as wide as two vectors of the
// instruction set.
//
// Layout, panel after panel, K-slice after K-slice: f32 [slice_k][columns], bf16 [ceil(slice_k /
// 2)][columns][2] (pairs of consecutive k side by side, a missing last odd element and missing
// columns zero). A thread that walks a panel reads memory in address order.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/linear_weight.h"

namespace lockstep::cpu {

// Raised when the bytes of a packed weight change, quantized or not: files of older ones are then
// packed anew.
inline constexpr int kPackedLayoutVersion = 1;

class PackedWeight final : public LinearWeight {
 public:
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED as Backend::AllocateLinear.
  static absl::StatusOr<std::unique_ptr<PackedWeight>> Allocate(const LinearShape& shape,
                                                                int panel_columns,
                                                                const WeightAllocator& allocator);

  int64_t bytes() const override { return buffer_.bytes(); }
  // Thread-safe over disjoint rows.
  void Fill(int64_t first_row, const HostRows& rows);

  bool bf16() const { return shape().dtype == DType::kBF16; }
  int panel_columns() const { return panel_columns_; }
  int64_t num_panels() const {
    return (shape().out_features + panel_columns_ - 1) / panel_columns_;
  }
  int64_t slice_k() const { return shape().in_features / shape().num_k_slices; }
  // Rows of a slice in the panel: slice_k, rounded up to pairs for bf16.
  int64_t padded_slice_k() const { return bf16() ? (slice_k() + 1) / 2 * 2 : slice_k(); }
  int64_t padded_k() const { return padded_slice_k() * shape().num_k_slices; }
  // From padded row k of a panel on; k even for bf16.
  const char* PanelAt(int64_t panel, int64_t k) const {
    return buffer_.as<char>() +
           (panel * padded_k() + k) * panel_columns_ * DTypeBytes(shape().dtype);
  }
  int64_t panel_bytes() const { return padded_k() * panel_columns_ * DTypeBytes(shape().dtype); }

 private:
  PackedWeight(const LinearShape& shape, int panel_columns)
      : LinearWeight(shape), panel_columns_(panel_columns) {}

  int panel_columns_;
  DeviceBuffer buffer_;
};

}  // namespace lockstep::cpu
