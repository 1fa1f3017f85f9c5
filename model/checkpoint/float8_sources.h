// FP8 matrices of a checkpoint: their tensors, and those that are kept so.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/stored_matrix.h"

namespace lockstep {

// The tensors of an FP8 matrix. INVALID_ARGUMENT as OpenMatrix.
struct Float8Tensors {
  const TensorInfo* values = nullptr;
  const TensorInfo* scales = nullptr;  // [rows], [rows, 1] or a single one; or a block's each
};
absl::StatusOr<Float8Tensors> FindFloat8(const Checkpoint& checkpoint, const MatrixName& matrix);

// An FP8 matrix as it lies: rows of RowContent::kQuantized, whose bytes are E4M3 numbers, and of
// RowContent::kScales, one of f32 to each, be there one for the matrix alone. Reading gives
// INVALID_ARGUMENT where either is not finite. Otherwise INVALID_ARGUMENT as OpenMatrix.
absl::StatusOr<std::vector<std::unique_ptr<RowSource>>> Float8Sources(const Checkpoint& checkpoint,
                                                                      const MatrixName& matrix);

}  // namespace lockstep
