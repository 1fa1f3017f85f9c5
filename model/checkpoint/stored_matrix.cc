#include "model/checkpoint/stored_matrix.h"

#include <utility>

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

// Read by columns that are whole groups, as OpenMatrix's caller makes sure; the matrix's last may
// be short.
class NativeScales final : public RowSource {
 public:
  NativeScales(const Checkpoint& checkpoint, const TensorInfo& tensor, int64_t group)
      : plain_(checkpoint, tensor), group_(group) {}

  int64_t StagingRowBytes(Range columns) const override {
    return plain_.StagingRowBytes(GroupsOf(columns, group_));
  }
  int64_t StoredBytes(Range rows, Range columns) const override {
    return plain_.StoredBytes(rows, GroupsOf(columns, group_));
  }
  absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const override {
    ASSIGN_OR_RETURN(HostRows out, plain_.Read(rows, GroupsOf(columns, group_), staging));
    out.content = RowContent::kScales;
    return out;
  }

 private:
  PlainRows plain_;
  const int64_t group_;
};

// Values and scales of our format, as they lie.
absl::StatusOr<std::vector<std::unique_ptr<RowSource>>> NativeSources(const Checkpoint& checkpoint,
                                                                      const MatrixName& matrix) {
  const StoredQuantization& stored = *checkpoint.config().stored;
  ASSIGN_OR_RETURN(const PackedTensors tensors, FindPacked(checkpoint, matrix));
  std::vector<std::unique_ptr<RowSource>> sources;
  sources.push_back(std::make_unique<NativeValues>(checkpoint, *tensors.values, stored.bits));
  sources.push_back(std::make_unique<NativeScales>(checkpoint, *tensors.scales, tensors.group));
  return sources;
}

absl::StatusOr<StoredMatrix> OpenQuantized(const Checkpoint& checkpoint, const MatrixName& matrix) {
  const ModelConfig& config = checkpoint.config();
  StoredMatrix opened;
  opened.dtype = config.dtype;
  if (!matrix.as_numbers) {
    opened.native = config.stored->native(matrix.columns, matrix.num_k_slices);
  }
  if (opened.native != Quantization::kNone) {
    ASSIGN_OR_RETURN(opened.sources, NativeSources(checkpoint, matrix));
  } else if (matrix.keeps_float8 && !matrix.as_numbers && config.stored->is_float8()) {
    ASSIGN_OR_RETURN(opened.sources, Float8Sources(checkpoint, matrix));
    opened.native = Quantization::kFp8;
    opened.activation_bound = config.stored->activation_bound;
  } else {
    ASSIGN_OR_RETURN(std::unique_ptr<RowSource> source, ForeignSource(checkpoint, matrix));
    opened.sources.push_back(std::move(source));
    opened.is_converted = true;
  }
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
