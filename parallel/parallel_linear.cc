#include "parallel/parallel_linear.h"

#include <cstddef>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

absl::Status SumOverRanks(Communicator& group, const TokenSplit& tokens, int64_t width, float* y) {
  return tokens.is_divided() ? group.ReduceScatterSum(y, tokens.share * width)
                             : group.AllReduceSum(y, tokens.num_tokens * width);
}

}  // namespace

absl::StatusOr<ColumnParallelLinear> ColumnParallelLinear::Create(Backend& backend,
                                                                  const LinearShape& shape) {
  ColumnParallelLinear linear;
  linear.backend_ = &backend;
  ASSIGN_OR_RETURN(linear.weight_, backend.AllocateLinear(shape));
  return linear;
}

void ColumnParallelLinear::Fill(int64_t first_row, const HostRows& rows) {
  backend_->FillLinear(*weight_, first_row, rows);
}

void ColumnParallelLinear::Forward(const void* x, int64_t num_tokens, float* y) const {
  backend_->Linear(*weight_, x, num_tokens, y);
}

void ColumnParallelLinear::RoundedForward(const void* x, int64_t num_tokens, void* y) const {
  backend_->RoundedLinear(*weight_, x, num_tokens, y);
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

absl::Status RowParallelLinear::Forward(const void* x, const TokenSplit& tokens, void* y) const {
  if (IsAlone()) {
    backend_->RoundedLinear(*weight_, x, tokens.num_tokens, y);
    return group_->AllReduceSum(nullptr, 0);  // whether the group goes on
  }
  auto* const parts = static_cast<float*>(y);
  backend_->Linear(*weight_, x, tokens.num_tokens, parts);
  return SumOverRanks(*group_, tokens, weight_->shape().out_features, parts);
}

absl::StatusOr<VocabParallelEmbedding> VocabParallelEmbedding::Create(Backend& backend,
                                                                      Communicator& group,
                                                                      const Shape& shape) {
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
  backend_->FillTable(table_.as<std::byte>() + first_row * row_bytes, shape_.dtype, shape_.hidden,
                      rows);
}

absl::Status VocabParallelEmbedding::Forward(const int32_t* ids, const TokenSplit& tokens,
                                             float* out) const {
  backend_->Embed({.table = table_.data(),
                   .table_dtype = shape_.dtype,
                   .num_rows = shape_.num_rows,
                   .first_id = shape_.first_id,
                   .hidden = shape_.hidden,
                   .ids = ids,
                   .num_tokens = tokens.num_tokens,
                   .out = out});
  return SumOverRanks(*group_, tokens, shape_.hidden, out);
}

absl::StatusOr<VocabParallelHead> VocabParallelHead::Create(Backend& backend, int64_t num_rows,
                                                            int64_t hidden, DType dtype,
                                                            Quantization quantization) {
  VocabParallelHead head;
  head.num_rows_ = num_rows;
  if (num_rows > 0) {
    ASSIGN_OR_RETURN(head.linear_,
                     ColumnParallelLinear::Create(backend, {.out_features = num_rows,
                                                            .in_features = hidden,
                                                            .dtype = dtype,
                                                            .quantization = quantization}));
  }
  return head;
}

void VocabParallelHead::Forward(const void* x, int64_t num_tokens, float* logits) const {
  if (num_rows_ > 0) linear_.Forward(x, num_tokens, logits);
}

}  // namespace lockstep
