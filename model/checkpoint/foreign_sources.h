// Matrices in other projects' quantized formats, read as f32; and what reading any format takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/stored_matrix.h"

namespace lockstep {

// The source of a matrix that checkpoint.config().stored describes. Weights are computed in f32:
//   pack-quantized: q * scale, a scale per row and group of columns;
//   FP8 (E4M3): value * scale, a scale per row, for the matrix or for a block of it, which some
//   name weight_scale_inv; scales of activations are not used; GPTQ: (q - zero) * scale of the
//   group that g_idx names, act-order included, where words of zero points are stored with
//   zero_offset taken from each, borrows included; AWQ: (q - zero) * scale.
// INVALID_ARGUMENT as OpenMatrix.
absl::StatusOr<std::unique_ptr<RowSource>> ForeignSource(const Checkpoint& checkpoint,
                                                         const MatrixName& matrix);

// The tensors of a pack-quantized matrix. INVALID_ARGUMENT as OpenMatrix.
struct PackedTensors {
  const TensorInfo* values = nullptr;  // I32 [rows, words]
  const TensorInfo* scales = nullptr;  // [rows, num_groups]
  int64_t group = 0;                   // columns; the last may be short
  int64_t num_groups = 0;
};
absl::StatusOr<PackedTensors> FindPacked(const Checkpoint& checkpoint, const MatrixName& matrix);
// [rows][num_groups], also when the tensor holds a single one.
absl::StatusOr<std::vector<float>> ReadScales(const Checkpoint& checkpoint,
                                              const TensorInfo& scales, Range rows,
                                              int64_t num_groups);

// INVALID_ARGUMENT naming the tensor, what it has and what it should have.
absl::Status CheckShape(const TensorInfo& tensor, const std::vector<int64_t>& shape);
absl::Status CheckStoredDType(const TensorInfo& tensor, std::string_view dtype_name);
absl::Status CheckNumbers(const TensorInfo& tensor);  // F32, F16 or BF16

// At least num_bytes of memory, whose contents are forgotten when it grows.
std::byte* ReserveBytes(std::vector<std::byte>& memory, int64_t num_bytes);

// Where to read num_bytes that are handed on as they are; and whether that is pinned memory.
std::byte* ReserveRows(Staging& staging, int64_t num_bytes);
inline bool IsPinned(const Staging& staging, const std::byte* rows) {
  return !staging.pinned.empty() && rows == staging.pinned.data();
}

// The groups, of so many elements each, that these lie in.
Range GroupsOf(Range elements, int64_t group);
// The bytes of a row of `bits`-bit values that hold these columns.
Range PackedBytes(Range columns, int bits);
// count 4-bit values, the first in the low half of a byte, or the high half when first is 1, to a
// byte each.
void UnpackNibbles(const std::byte* packed, int64_t first, int64_t count, std::byte* out);

}  // namespace lockstep
