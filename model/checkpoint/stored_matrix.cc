#include "model/checkpoint/stored_matrix.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/float8_sources.h"
#include "model/checkpoint/foreign_sources.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

class PlainRows final : public RowSource {
 public:
  PlainRows(const Checkpoint& checkpoint, const TensorInfo& tensor)
      : checkpoint_(checkpoint), tensor_(tensor) {}

  int64_t StagingRowBytes(Range columns) const override {
    return columns.size() * DTypeBytes(*tensor_.dtype);
  }
  int64_t StoredBytes(Range rows, Range columns) const override {
    return rows.size() * StagingRowBytes(columns);
  }
  absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const override {
    std::byte* out = ReserveRows(staging, StoredBytes(rows, columns));
    RETURN_IF_ERROR(
        checkpoint_.Read(tensor_, rows.begin, rows.end, columns.begin, columns.end, out));
    return HostRows{.data = out,
                    .dtype = *tensor_.dtype,
                    .num_rows = rows.size(),
                    .row_stride_bytes = StagingRowBytes(columns),
                    .is_pinned = IsPinned(staging, out)};
  }

 private:
  const Checkpoint& checkpoint_;
  const TensorInfo& tensor_;
};

// Values of our format: compressed-tensors packs q + zero into 32-bit words, the first in the
// lowest bits, so that in memory they lie one after another.
class NativeValues final : public RowSource {
 public:
  NativeValues(const Checkpoint& checkpoint, const TensorInfo& tensor, int bits)
      : checkpoint_(checkpoint), tensor_(tensor), bits_(bits) {}

  int64_t StagingRowBytes(Range columns) const override { return columns.size(); }
  int64_t StoredBytes(Range rows, Range columns) const override {
    const Range bytes = PackedBytes(columns, bits_);
    return rows.size() * bytes.size();
  }
  absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const override {
    const Range bytes = PackedBytes(columns, bits_);
    std::byte* stored = ReserveBytes(staging.stored, rows.size() * bytes.size());
    RETURN_IF_ERROR(
        checkpoint_.ReadBytes(tensor_, rows.begin, rows.end, bytes.begin, bytes.end, stored));
    HostRows out{.data = stored,
                 .num_rows = rows.size(),
                 .row_stride_bytes = bytes.size(),
                 .content = RowContent::kQuantized};
    if (bits_ == 8) return out;
    std::byte* unpacked = ReserveBytes(staging.converted, rows.size() * columns.size());
    for (int64_t row = 0; row < rows.size(); ++row) {
      UnpackNibbles(stored + row * bytes.size(), columns.begin % 2, columns.size(),
                    unpacked + row * columns.size());
    }
    out.data = unpacked;
    out.row_stride_bytes = columns.size();
    return out;
  }

 private:
  const Checkpoint& checkpoint_;
  const TensorInfo& tensor_;
  const int bits_;
};

class NativeScales final : public RowSource {
 public:
  NativeScales(const Checkpoint& checkpoint, const TensorInfo& tensor, QuantizedGroups groups)
      : plain_(checkpoint, tensor), groups_(groups) {}

  int64_t StagingRowBytes(Range columns) const override {
    return plain_.StagingRowBytes(GroupsOf(columns));
  }
  int64_t StoredBytes(Range rows, Range columns) const override {
    return plain_.StoredBytes(rows, GroupsOf(columns));
  }
  absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const override {
    ASSIGN_OR_RETURN(HostRows out, plain_.Read(rows, GroupsOf(columns), staging));
    out.content = RowContent::kScales;
    return out;
  }

 private:
  // Columns are whole groups, as OpenMatrix's caller makes sure.
  Range GroupsOf(Range columns) const { return {GroupAt(columns.begin), GroupAt(columns.end)}; }
  int64_t GroupAt(int64_t column) const {
    return column / groups_.slice_k * groups_.per_slice() +
           (column % groups_.slice_k + groups_.group - 1) / groups_.group;
  }

  PlainRows plain_;
  const QuantizedGroups groups_;
};

absl::StatusOr<StoredMatrix> OpenNative(const Checkpoint& checkpoint, const MatrixName& matrix,
                                        const TensorInfo& values) {
  const StoredQuantization& stored = *checkpoint.config().stored;
  StoredMatrix opened;
  opened.native = stored.native();
  const QuantizedGroups groups{matrix.columns / matrix.num_k_slices, QuantizedGroup(opened.native)};
  const int64_t stored_slice_k = matrix.columns / matrix.stored_k_slices;
  if (matrix.num_k_slices != matrix.stored_k_slices &&
      (groups.slice_k % groups.group != 0 || stored_slice_k % groups.group != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "matrix ", matrix.name, ": ", matrix.columns, " columns in ", matrix.num_k_slices,
        " K-slices do not have the groups that they are quantized in; use a tp of 1, 2, 4 or 8, or "
        "the unquantized checkpoint"));
  }
  ASSIGN_OR_RETURN(const TensorInfo* scales, checkpoint.Find(matrix.name + ".weight_scale"));
  RETURN_IF_ERROR(CheckShape(*scales, {matrix.rows, groups.per_slice() * matrix.num_k_slices}));
  RETURN_IF_ERROR(CheckNumbers(*scales));
  opened.sources.push_back(std::make_unique<NativeValues>(checkpoint, values, stored.bits));
  opened.sources.push_back(std::make_unique<NativeScales>(checkpoint, *scales, groups));
  return opened;
}

absl::StatusOr<StoredMatrix> OpenQuantized(const Checkpoint& checkpoint, const MatrixName& matrix) {
  const ModelConfig& config = checkpoint.config();
  StoredMatrix opened;
  if (config.stored->native() != Quantization::kNone) {
    ASSIGN_OR_RETURN(const TensorInfo* values, checkpoint.Find(matrix.name + ".weight_packed"));
    const int64_t per_word = 32 / config.stored->bits;
    RETURN_IF_ERROR(CheckShape(*values, {matrix.rows, (matrix.columns + per_word - 1) / per_word}));
    RETURN_IF_ERROR(CheckStoredDType(*values, "I32"));
    ASSIGN_OR_RETURN(opened, OpenNative(checkpoint, matrix, *values));
  } else if (matrix.keeps_float8 && config.stored->is_float8()) {
    ASSIGN_OR_RETURN(opened.sources, Float8Sources(checkpoint, matrix));
    opened.native = Quantization::kFp8;
    opened.activation_bound = config.stored->activation_bound;
  } else {
    ASSIGN_OR_RETURN(std::unique_ptr<RowSource> source, ForeignSource(checkpoint, matrix));
    opened.sources.push_back(std::move(source));
    opened.is_converted = true;
  }
  opened.dtype = config.dtype;
  return opened;
}

}  // namespace

std::unique_ptr<RowSource> PlainSource(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  return std::make_unique<PlainRows>(checkpoint, tensor);
}

absl::StatusOr<StoredMatrix> OpenMatrix(const Checkpoint& checkpoint, const MatrixName& matrix) {
  if (checkpoint.HasQuantized(matrix.name)) return OpenQuantized(checkpoint, matrix);
  ASSIGN_OR_RETURN(const TensorInfo* plain, checkpoint.Find(matrix.name + ".weight"));
  RETURN_IF_ERROR(CheckShape(*plain, {matrix.rows, matrix.columns}));
  RETURN_IF_ERROR(CheckNumbers(*plain));
  StoredMatrix opened;
  opened.sources.push_back(PlainSource(checkpoint, *plain));
  opened.dtype = *plain->dtype;
  return opened;
}

}  // namespace lockstep
