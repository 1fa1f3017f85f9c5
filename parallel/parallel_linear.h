// The four ways a matrix is sharded over a tensor parallel group, each with the collective it needs
// (Shoeybi et al. 2019, "Megatron-LM", section 3). A column-parallel product followed by a
// row-parallel one costs one all-reduce, or a reduce-scatter and a gathering where tokens are
// divided (parallel/token_split.h).
//
// Numbers are the same for every tensor parallel size of equal K-slice counts
// (parallel/partition.h). Forward is called by the step loop's thread and allocates nothing; Fill
// by loader threads, over disjoint rows, before the first Forward. backend and group must outlive
// the layers. Pointers are device pointers; activations dense, outputs f32
// unless said otherwise, the inputs of products of Backend::LinearInput().
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "parallel/token_split.h"

namespace lockstep {

// Rows of W divided: this rank computes some of the outputs. No collective.
class ColumnParallelLinear {
 public:
  ColumnParallelLinear() = default;
  // shape.out_features: this rank's.
  static absl::StatusOr<ColumnParallelLinear> Create(Backend& backend, const LinearShape& shape);
  void Fill(int64_t first_row, const HostRows& rows);
  // x [num_tokens, in_features] -> y [num_tokens, out_features].
  void Forward(const void* x, int64_t num_tokens, float* y) const;
  // As Backend::RoundedLinear has it.
  void RoundedForward(const void* x, int64_t num_tokens, void* y) const;
  const LinearWeight* weight() const { return weight_.get(); }  // that multiplies x
  int64_t bytes() const { return weight_ == nullptr ? 0 : weight_->bytes(); }

 private:
  Backend* backend_ = nullptr;
  std::unique_ptr<LinearWeight> weight_;
};

// Columns of W divided: this rank multiplies its share of the inputs; the sum over ranks adds the
// shares, continuing the tree of the rank's own K-slices.
class RowParallelLinear {
 public:
  RowParallelLinear() = default;
  // shape.in_features and shape.num_k_slices: this rank's.
  static absl::StatusOr<RowParallelLinear> Create(Backend& backend, Communicator& group,
                                                  const LinearShape& shape);
  void Fill(int64_t first_row, const HostRows& rows);
  // x [num_tokens, in_features] -> y [num_tokens, out_features], the same on every rank; of divided
  // tokens y has room for tokens.room() rows, and tokens.mine of them are what they should be. Of
  // OutputDType, in memory that has room for f32.
  absl::Status Forward(const void* x, const TokenSplit& tokens, void* y) const;
  // Sums over ranks are of f32; what nobody else adds to may be rounded as Backend::RoundedLinear
  // does.
  DType OutputDType(const TokenSplit& tokens) const {
    return IsAlone() ? backend_->ProductDType(tokens.num_tokens) : DType::kF32;
  }
  const LinearWeight* weight() const { return weight_.get(); }  // that multiplies x
  int64_t bytes() const { return weight_ == nullptr ? 0 : weight_->bytes(); }

 private:
  bool IsAlone() const { return group_->size() == 1; }

  Backend* backend_ = nullptr;
  Communicator* group_ = nullptr;
  std::unique_ptr<LinearWeight> weight_;
};

// Rows of the embedding table divided. A token's row comes from its owner, zeros from the others;
// the sum over ranks adds.
class VocabParallelEmbedding {
 public:
  struct Shape {
    int64_t first_id = 0;  // this rank's rows: ids [first_id, first_id + num_rows), possibly none
    int64_t num_rows = 0;
    int64_t hidden = 0;
    DType dtype = DType::kF32;  // EmbedArgs::table_dtype
  };

  VocabParallelEmbedding() = default;
  static absl::StatusOr<VocabParallelEmbedding> Create(Backend& backend, Communicator& group,
                                                       const Shape& shape);
  // Converts to the table's dtype.
  void Fill(int64_t first_row, const HostRows& rows);
  // ids [num_tokens] -> out [num_tokens, hidden], the same on every rank, or as RowParallelLinear's
  // y; zeros for ids nobody owns.
  absl::Status Forward(const int32_t* ids, const TokenSplit& tokens, float* out) const;
  int64_t bytes() const { return table_.bytes(); }

 private:
  Backend* backend_ = nullptr;
  Communicator* group_ = nullptr;
  Shape shape_;
  DeviceBuffer table_;  // [num_rows, hidden]
};

// Rows of the LM head divided, possibly none for this rank. No collective: the sampler works on
// shares of the vocabulary.
class VocabParallelHead {
 public:
  VocabParallelHead() = default;
  static absl::StatusOr<VocabParallelHead> Create(Backend& backend, int64_t num_rows,
                                                  int64_t hidden, DType dtype,
                                                  Quantization quantization = Quantization::kNone);
  void Fill(int64_t first_row, const HostRows& rows) { linear_.Fill(first_row, rows); }
  // x [num_tokens, hidden] -> logits [num_tokens, num_rows].
  void Forward(const void* x, int64_t num_tokens, float* logits) const;
  int64_t bytes() const { return linear_.bytes(); }

 private:
  int64_t num_rows_ = 0;
  ColumnParallelLinear linear_;  // unused when num_rows_ is 0
};

}  // namespace lockstep
