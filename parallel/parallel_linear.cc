#include "parallel/parallel_linear.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "parallel/host_rows.h"

namespace lockstep {
namespace {

// Rounding may have made one of a small negative number.
template <typename Bits>
void ClearNegativeZeros(std::vector<std::byte>& numbers) {
  constexpr Bits kNegativeZero = Bits{1} << (8 * sizeof(Bits) - 1);
  for (size_t at = 0; at < numbers.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, &numbers[at], sizeof(bits));
    if (bits == kNegativeZero) bits = 0;
    std::memcpy(&numbers[at], &bits, sizeof(bits));
  }
}

absl::Status SumOverRanks(Communicator& group, const TokenSplit& tokens, int64_t width, float* y) {
  return tokens.is_divided() ? group.ReduceScatterSum(y, tokens.share * width)
                             : group.AllReduceSum(y, tokens.num_tokens * width);
}

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

// Many rows to a copy: each is a call of a driver, and a GPU's waits for others'.
void VocabParallelEmbedding::Fill(int64_t first_row, const HostRows& rows) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  LS_CHECK(first_row >= 0 && first_row + rows.num_rows <= shape_.num_rows);
  const int64_t row_bytes = shape_.hidden * DTypeBytes(shape_.dtype);
  const int64_t at_once =
      std::clamp<int64_t>(kMostBytes / row_bytes, 1, std::max<int64_t>(rows.num_rows, 1));
  std::vector<float> wide(rows.dtype == shape_.dtype ? 0 : static_cast<size_t>(shape_.hidden));
  std::vector<std::byte> kept(static_cast<size_t>(at_once * row_bytes));
  for (int64_t begin = 0; begin < rows.num_rows; begin += at_once) {
    const int64_t count = std::min(at_once, rows.num_rows - begin);
    kept.resize(static_cast<size_t>(count * row_bytes));
    for (int64_t i = 0; i < count; ++i) {
      const auto* stored =
          static_cast<const std::byte*>(rows.data) + (begin + i) * rows.row_stride_bytes;
      std::byte* const row = kept.data() + i * row_bytes;
      if (rows.dtype == shape_.dtype) {  // the usual case, and half a GB of it
        std::memcpy(row, stored, static_cast<size_t>(row_bytes));
      } else {
        WidenRow(stored, rows.dtype, shape_.hidden, wide.data());
        NarrowRow(wide.data(), shape_.hidden, shape_.dtype, row);
      }
    }
    if (shape_.dtype == DType::kF32) {
      ClearNegativeZeros<uint32_t>(kept);
    } else {
      ClearNegativeZeros<uint16_t>(kept);
    }
    backend_->CopyToDevice(table_.as<std::byte>() + (first_row + begin) * row_bytes, kept.data(),
                           count * row_bytes);
  }
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
                     ColumnParallelLinear::Create(backend, num_rows, hidden, dtype, quantization));
  }
  return head;
}

void VocabParallelHead::Forward(const void* x, int64_t num_tokens, float* logits) const {
  if (num_rows_ > 0) linear_.Forward(x, num_tokens, logits);
}

}  // namespace lockstep
