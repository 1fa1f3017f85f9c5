#include "kernels/cpu/linear_shape.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace lockstep::cpu {
namespace {

absl::Status OutOfRange(const char* field, int64_t value, int64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("linear weight: ", field, " is ", value, ", allowed are 1 to ", limit));
}

}  // namespace

absl::Status CheckLinearShape(const LinearShape& shape) {
  if (shape.out_features < 1 || shape.out_features > kMaxFeatures) {
    return OutOfRange("out_features", shape.out_features, kMaxFeatures);
  }
  if (shape.in_features < 1 || shape.in_features > kMaxFeatures) {
    return OutOfRange("in_features", shape.in_features, kMaxFeatures);
  }
  if (shape.num_k_slices < 1 || shape.num_k_slices > kMaxKSlices) {
    return OutOfRange("num_k_slices", shape.num_k_slices, kMaxKSlices);
  }
  if (shape.in_features % shape.num_k_slices != 0) {
    return absl::InvalidArgumentError(absl::StrCat("linear weight: in_features ", shape.in_features,
                                                   " cannot be cut into ", shape.num_k_slices,
                                                   " equal K-slices"));
  }
  if (shape.quantization == Quantization::kFp8) {
    return absl::InvalidArgumentError(
        "fp8 weights are multiplied by GPUs; for the CPU use --quantize int8");
  }
  if (shape.quantization == Quantization::kNone && shape.dtype != DType::kF32 &&
      shape.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat("linear weight: dtype ",
                                                   std::string(DTypeName(shape.dtype)),
                                                   " is not kept by the CPU; use f32 or bf16"));
  }
  return absl::OkStatus();
}

void CheckHostRows(const LinearShape& shape, int64_t first_row, const HostRows& rows) {
  LS_CHECK_GE(first_row, 0);
  LS_CHECK_GE(rows.num_rows, 0);
  LS_CHECK_LE(rows.num_rows, shape.out_features - first_row);
  LS_CHECK(rows.data != nullptr || rows.num_rows == 0);
  LS_CHECK(rows.content == RowContent::kValues || shape.quantization != Quantization::kNone);
}

}  // namespace lockstep::cpu
