// How weights come to the device.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/linear_shape.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_rows.h"
#include "kernels/cuda/workspaces.h"

namespace lockstep::cuda {
namespace {

bool IsFp8(const LinearShape& shape) { return shape.quantization == Quantization::kFp8; }

}  // namespace

absl::StatusOr<std::unique_ptr<LinearWeight>> CudaBackend::AllocateLinear(
    const LinearShape& shape) {
  LinearShape kept = shape;
  kept.quantization = Quantization::kNone;
  kept.dtype = DType::kF32;  // what is checked are sizes: all are kept in options_.compute
  RETURN_IF_ERROR(cpu::CheckLinearShape(kept));
  if (IsFp8(shape)) RETURN_IF_ERROR(CheckFp8(shape));
  LS_CHECK(shape.activation_bound > 0) << shape.activation_bound;
  if (shape.in_features > row_loader_->most_columns()) {
    return absl::InvalidArgumentError(absl::StrCat("linear weight: in_features is ",
                                                   shape.in_features, ", GPUs take up to ",
                                                   row_loader_->most_columns()));
  }
  if (shape.quantization == Quantization::kInt8 || shape.quantization == Quantization::kInt4) {
    return absl::InvalidArgumentError(
        "GPUs do not compute with int8 and int4 weights yet: leave --quantize, use fp8, or use "
        "--device cpu");
  }
  const int64_t element_bytes = IsFp8(shape) ? 1 : DTypeBytes(options_.compute);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(shape.out_features * shape.in_features, element_bytes, &bytes)) {
    return absl::ResourceExhaustedError("linear weight: too large");
  }
  RETURN_IF_ERROR(gemm_->Prepare(shape.out_features, shape.in_features, IsFp8(shape)));
  ASSIGN_OR_RETURN(DeviceBuffer memory, Allocate(bytes));
  DeviceBuffer scales;
  if (IsFp8(shape)) {
    ASSIGN_OR_RETURN(scales, Allocate(shape.out_features * int64_t{sizeof(float)}));
  }
  return std::make_unique<DeviceRows>(shape, element_bytes, std::move(memory), std::move(scales));
}

bool CudaBackend::HoldsFp8(int64_t out_features, int64_t in_features) const {
  return Capability() >= kFp8Capability && SuitsFp8(out_features, in_features);
}

absl::Status CudaBackend::CheckFp8(const LinearShape& shape) const {
  if (Capability() < kFp8Capability) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 weights need a GPU of compute capability 8.9 or later; ",
                     properties_.name, " has ", properties_.major, ".", properties_.minor));
  }
  if (!HoldsFp8(shape.out_features, shape.in_features)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 weights come in multiples of 16; this rank's share of a matrix is ",
                     shape.out_features, " x ", shape.in_features));
  }
  return absl::OkStatus();
}

void CudaBackend::PlaceWeights(WeightAllocator) { LS_CHECK(false) << "weights have no layout"; }

int64_t CudaBackend::ProductBytes(const ProductInputs& inputs) const {
  return QuantizedInputBytes(inputs);
}

absl::Status CudaBackend::ReserveForProducts(int64_t bytes) {
  if (bytes <= gemm_->quantized_bytes()) return absl::OkStatus();
  ASSIGN_OR_RETURN(DeviceBuffer memory, Allocate(bytes));
  gemm_->QuantizeIn(std::move(memory));
  return absl::OkStatus();
}

void CudaBackend::FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) {
  cpu::CheckHostRows(weight.shape(), first_row, rows);
  UseDevice();
  weights_are_new_ = true;
  const auto& device = static_cast<const DeviceRows&>(weight);
  const int64_t width = weight.shape().in_features;
  std::byte* const to = device.row(first_row);
  if (!IsFp8(weight.shape())) return row_loader_->Convert(rows, width, options_.compute, to);
  float* const scales = device.scales() + first_row;
  switch (rows.content) {
    case RowContent::kValues:
      return row_loader_->Quantize(rows, width, options_.compute,
                                   {reinterpret_cast<uint8_t*>(to), scales});
    case RowContent::kQuantized:
      return row_loader_->Copy(rows, width, to);
    case RowContent::kScales:
      return row_loader_->Convert(rows, 1, DType::kF32, scales);
  }
}

void CudaBackend::FillTable(void* table, DType dtype, int64_t width, const HostRows& rows) {
  LS_CHECK(rows.content == RowContent::kValues);
  UseDevice();
  row_loader_->Convert(rows, width, dtype, table);
}

}  // namespace lockstep::cuda
