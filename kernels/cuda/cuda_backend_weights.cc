// How weights come to the device.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/linear_shape.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_rows.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stored_rows.h"

namespace lockstep::cuda {
namespace {

constexpr int kFp8Multiple = 16;  // of both features: what cuBLASLt asks for

bool IsFp8(const LinearShape& shape) { return shape.quantization == Quantization::kFp8; }

}  // namespace

absl::StatusOr<std::unique_ptr<LinearWeight>> CudaBackend::AllocateLinear(
    const LinearShape& shape) {
  LinearShape kept = shape;
  kept.quantization = Quantization::kNone;
  kept.dtype = DType::kF32;  // what is checked are sizes: all are kept in options_.compute
  RETURN_IF_ERROR(cpu::CheckLinearShape(kept));
  if (IsFp8(shape)) RETURN_IF_ERROR(PrepareFp8(shape));
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
  return Capability() >= kFp8Capability && out_features % kFp8Multiple == 0 &&
         in_features % kFp8Multiple == 0;
}

absl::Status CudaBackend::PrepareFp8(const LinearShape& shape) {
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
  while (fp8_staged_.size() < static_cast<size_t>(kStagingSlots)) {
    ASSIGN_OR_RETURN(DeviceBuffer staged, Allocate(kStagingBytes));
    fp8_staged_.push_back(std::move(staged));
  }
  return absl::OkStatus();
}

void CudaBackend::PlaceWeights(WeightAllocator) { LS_CHECK(false) << "weights have no layout"; }

template <typename Convert, typename Issue>
void CudaBackend::StageRows(const HostRows& rows, int64_t row_bytes, const Convert& convert,
                            const Issue& issue) {
  LS_CHECK(row_bytes <= staging_->slot_bytes()) << "a row of " << row_bytes << " bytes";
  const int64_t rows_per_slot = staging_->slot_bytes() / row_bytes;
  for (int64_t row = 0; row < rows.num_rows; row += rows_per_slot) {
    const int64_t count = std::min(rows_per_slot, rows.num_rows - row);
    const auto fill = [&](std::byte* slot) {
      for (int64_t i = 0; i < count; ++i) {
        convert(static_cast<const std::byte*>(rows.data) + (row + i) * rows.row_stride_bytes,
                slot + i * row_bytes);
      }
    };
    staging_->FillAndIssue(
        fill, [&](const std::byte* slot, int index) { issue(slot, index, row, count); });
  }
}

void CudaBackend::FillValues(const LinearWeight& weight, int64_t first_row, const HostRows& rows) {
  const auto& device = static_cast<const DeviceRows&>(weight);
  const int64_t in_features = weight.shape().in_features;
  const bool is_fp8 = IsFp8(weight.shape());
  const int64_t row_bytes = in_features * DTypeBytes(options_.compute);
  const auto convert = [&](const std::byte* row, std::byte* slot) {
    ConvertRow(row, rows.dtype, in_features, options_.compute, slot);
  };
  StageRows(rows, row_bytes, convert,
            [&](const std::byte* slot, int index, int64_t row, int64_t count) {
              const int64_t to = first_row + row;
              if (!is_fp8) return staging_->IssueCopy(device.row(to), slot, count * row_bytes);
              void* staged = fp8_staged_[static_cast<size_t>(index)].data();
              staging_->IssueCopy(staged, slot, count * row_bytes);
              CudaCheck(LaunchQuantizeFp8(staged, options_.compute, count, in_features,
                                          reinterpret_cast<uint8_t*>(device.row(to)),
                                          device.scales() + to, stream_),
                        "quantizing weights");
            });
}

void CudaBackend::FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) {
  cpu::CheckHostRows(weight.shape(), first_row, rows);
  UseDevice();
  weights_are_new_ = true;
  if (rows.content == RowContent::kValues) return FillValues(weight, first_row, rows);
  LS_CHECK(IsFp8(weight.shape()));
  const auto& device = static_cast<const DeviceRows&>(weight);
  const auto fill = [&](std::byte* to, int64_t row_bytes, const auto& convert) {
    StageRows(rows, row_bytes, convert,
              [&](const std::byte* slot, int, int64_t row, int64_t count) {
                staging_->IssueCopy(to + (first_row + row) * row_bytes, slot, count * row_bytes);
              });
  };
  if (rows.content == RowContent::kQuantized) {
    const int64_t row_bytes = weight.shape().in_features;
    return fill(device.row(0), row_bytes, [&](const std::byte* row, std::byte* slot) {
      std::memcpy(slot, row, static_cast<size_t>(row_bytes));
    });
  }
  fill(reinterpret_cast<std::byte*>(device.scales()), sizeof(float),
       [&](const std::byte* row, std::byte* slot) {
         const float scale = cpu::HostElement(row, rows.dtype, 0);
         std::memcpy(slot, &scale, sizeof(scale));
       });
}

}  // namespace lockstep::cuda
