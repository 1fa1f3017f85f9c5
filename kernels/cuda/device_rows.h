// Weight matrices on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/cuda/gemm.h"
#include "kernels/device_buffer.h"
#include "kernels/linear_weight.h"

namespace lockstep::cuda {

// Row-major, as they lie in a checkpoint; e4m3 with a scale to each row.
class DeviceRows final : public LinearWeight {
 public:
  DeviceRows(const LinearShape& shape, int64_t element_bytes, DeviceBuffer memory,
             DeviceBuffer scales)
      : LinearWeight(shape),
        element_bytes_(element_bytes),
        memory_(std::move(memory)),
        scales_(std::move(scales)) {}
  int64_t bytes() const override { return memory_.bytes() + scales_.bytes(); }
  int64_t row_bytes() const { return shape().in_features * element_bytes_; }
  std::byte* row(int64_t index) const { return memory_.as<std::byte>() + index * row_bytes(); }
  float* scales() const { return scales_.as<float>(); }  // null unless e4m3

 private:
  int64_t element_bytes_;
  DeviceBuffer memory_;
  DeviceBuffer scales_;
};

inline Gemm::Weight WeightOf(const LinearWeight& weight) {
  const auto& rows = static_cast<const DeviceRows&>(weight);
  const LinearShape& shape = weight.shape();
  return {shape.out_features, shape.in_features, rows.row(0), rows.scales(),
          shape.activation_bound};
}

}  // namespace lockstep::cuda
