#include "parallel/parallel_linear.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "parallel/host_rows.h"

namespace lockstep {
namespace {

float WithoutNegativeZero(float value) { return value + 0.0f; }

// Rounding may have made one of a small negative number.
BF16 WithoutNegativeZero(BF16 value) { return value.bits == 0x8000 ? BF16{0} : value; }

}  // namespace

absl::StatusOr<ColumnParallelLinear> ColumnParallelLinear::Create(Backend& backend,
                                                                  int64_t out_features,
                                                                  int64_t in_features, DType dtype,
                                                                  Quantization quantization) {
  ColumnParallelLinear linear;
  linear.backend_ = &backend;
  ASSIGN_OR_RETURN(linear.weight_, backend.AllocateLinear({.out_features = out_features,
                                                           .in_features = in_features,
                                                           .dtype = dtype,
                                                           .num_k_slices = 1,
                                                           .quantization = quantization}));
  return linear;
}

void ColumnParallelLinear::Fill(int64_t first_row, const HostRows& rows) {
  backend_->FillLinear(*weight_, first_row, rows);
}

void ColumnParallelLinear::Forward(const void* x, int64_t num_tokens, float* y) const {
  backend_->Linear(*weight_, x, num_tokens, y);
}

absl::StatusOr<RowParallelLinear> RowParallelLinear::Create(Backend& backend, Communicator& group,
                                                            const LinearShape& shape) {
  RowParallelLinear linear;
  linear.backend_ = &backend;
  linear.group_ = &group;
  ASSIGN_OR_RETURN(linear.weight_, backend.AllocateLinear(shape));
  return linear;
}

void RowParallelLinear::Fill(int64_t first_row, const HostRows& rows) {
  backend_->FillLinear(*weight_, first_row, rows);
}

absl::Status RowParallelLinear::Forward(const void* x, int64_t num_tokens, float* y) const {
  backend_->Linear(*weight_, x, num_tokens, y);
  return group_->AllReduceSum(y, num_tokens * weight_->shape().out_features);
}

absl::StatusOr<VocabParallelEmbedding> VocabParallelEmbedding::Create(Backend& backend,
                                                                      Communicator& group,
                                                                      const Shape& shape) {
  LS_CHECK(shape.dtype == DType::kF32 || shape.dtype == DType::kBF16);
  VocabParallelEmbedding embedding;
  embedding.backend_ = &backend;
  embedding.group_ = &group;
  embedding.shape_ = shape;
  ASSIGN_OR_RETURN(embedding.table_,
                   backend.Allocate(shape.num_rows * shape.hidden * DTypeBytes(shape.dtype)));
  return embedding;
}

void VocabParallelEmbedding::Fill(int64_t first_row, const HostRows& rows) {
  LS_CHECK(first_row >= 0 && first_row + rows.num_rows <= shape_.num_rows);
  const int64_t row_bytes = shape_.hidden * DTypeBytes(shape_.dtype);
  if (rows.dtype == DType::kBF16 && shape_.dtype == DType::kBF16)
    return FillAsItIs(first_row, rows);
  std::vector<float> wide(static_cast<size_t>(shape_.hidden));
  std::vector<BF16> narrow(shape_.dtype == DType::kBF16 ? wide.size() : 0);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    WidenRow(static_cast<const std::byte*>(rows.data) + row * rows.row_stride_bytes, rows.dtype,
             shape_.hidden, wide.data());
    const void* converted = wide.data();
    if (shape_.dtype == DType::kBF16) {
      for (size_t i = 0; i < wide.size(); ++i) narrow[i] = WithoutNegativeZero(ToBF16(wide[i]));
      converted = narrow.data();
    } else {
      for (float& value : wide) value = WithoutNegativeZero(value);
    }
    backend_->CopyToDevice(table_.as<std::byte>() + (first_row + row) * row_bytes, converted,
                           row_bytes);
  }
}

// The usual case, and half a GB of it: nothing to convert.
void VocabParallelEmbedding::FillAsItIs(int64_t first_row, const HostRows& rows) {
  const size_t hidden = static_cast<size_t>(shape_.hidden);
  std::vector<BF16> narrow(hidden);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    std::memcpy(narrow.data(),
                static_cast<const std::byte*>(rows.data) + row * rows.row_stride_bytes,
                hidden * sizeof(BF16));
    for (BF16& value : narrow) value = WithoutNegativeZero(value);
    backend_->CopyToDevice(table_.as<BF16>() + (first_row + row) * shape_.hidden, narrow.data(),
                           shape_.hidden * int64_t{sizeof(BF16)});
  }
}

absl::Status VocabParallelEmbedding::Forward(const int32_t* ids, int64_t num_tokens,
                                             float* out) const {
  backend_->Embed({.table = table_.data(),
                   .table_dtype = shape_.dtype,
                   .num_rows = shape_.num_rows,
                   .first_id = shape_.first_id,
                   .hidden = shape_.hidden,
                   .ids = ids,
                   .num_tokens = num_tokens,
                   .out = out});
  return group_->AllReduceSum(out, num_tokens * shape_.hidden);
}

absl::StatusOr<VocabParallelHead> VocabParallelHead::Create(Backend& backend, int64_t num_rows,
                                                            int64_t hidden, DType dtype,
                                                            Quantization quantization) {
  VocabParallelHead head;
  head.num_rows_ = num_rows;
  if (num_rows > 0) {
    ASSIGN_OR_RETURN(head.linear_,
                     ColumnParallelLinear::Create(backend, num_rows, hidden, dtype, quantization));
  }
  return head;
}

void VocabParallelHead::Forward(const void* x, int64_t num_tokens, float* logits) const {
  if (num_rows_ > 0) linear_.Forward(x, num_tokens, logits);
}

}  // namespace lockstep
