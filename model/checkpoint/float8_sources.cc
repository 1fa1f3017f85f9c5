#include "model/checkpoint/float8_sources.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/foreign_sources.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

// By the name that most have, or DeepSeek's, whose followers have "fp8".
absl::StatusOr<const TensorInfo*> FindFloat8Scales(const Checkpoint& checkpoint,
                                                   const MatrixName& matrix) {
  auto scales = checkpoint.Find(matrix.name + ".weight_scale");
  if (scales.ok()) return scales;
  const auto inverse = checkpoint.Find(matrix.name + ".weight_scale_inv");
  return inverse.ok() ? inverse : scales;
}

absl::Status NotFinite(const TensorInfo& tensor, int64_t row) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name), ", row ", row,
                                                 ": holds what is not a finite number"));
}

class Float8Values final : public RowSource {
 public:
  Float8Values(const Checkpoint& checkpoint, const TensorInfo& tensor)
      : checkpoint_(checkpoint), tensor_(tensor) {}

  int64_t StagingRowBytes(Range columns) const override { return columns.size(); }
  int64_t StoredBytes(Range rows, Range columns) const override {
    return rows.size() * columns.size();
  }
  absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const override {
    const int64_t count = StoredBytes(rows, columns);
    std::byte* values = ReserveRows(staging, count);
    RETURN_IF_ERROR(
        checkpoint_.ReadBytes(tensor_, rows.begin, rows.end, columns.begin, columns.end, values));
    constexpr std::byte kNan{0x7f};  // of either sign
    const auto is_nan = [=](std::byte value) { return (value & kNan) == kNan; };
    if (const std::byte* found = std::find_if(values, values + count, is_nan);
        found != values + count) {
      return NotFinite(tensor_, rows.begin + (found - values) / columns.size());
    }
    return HostRows{.data = values,
                    .num_rows = rows.size(),
                    .row_stride_bytes = columns.size(),
                    .content = RowContent::kQuantized,
                    .is_pinned = IsPinned(staging, values)};
  }

 private:
  const Checkpoint& checkpoint_;
  const TensorInfo& tensor_;
};

class Float8Scales final : public RowSource {
 public:
  Float8Scales(const Checkpoint& checkpoint, const TensorInfo& tensor)
      : checkpoint_(checkpoint), tensor_(tensor) {}

  int64_t StagingRowBytes(Range) const override { return sizeof(float); }
  int64_t StoredBytes(Range rows, Range) const override {
    const int64_t all = tensor_.num_bytes / DTypeBytes(*tensor_.dtype);
    return std::min(all, rows.size()) * DTypeBytes(*tensor_.dtype);
  }
  absl::StatusOr<HostRows> Read(Range rows, Range, Staging& staging) const override {
    ASSIGN_OR_RETURN(const std::vector<float> scales,
                     ReadScales(checkpoint_, tensor_, rows, /*num_groups=*/1));
    const auto wrong = std::find_if_not(scales.begin(), scales.end(),
                                        [](float scale) { return std::isfinite(scale); });
    if (wrong != scales.end()) return NotFinite(tensor_, rows.begin + (wrong - scales.begin()));
    constexpr int64_t kBytes = sizeof(float);
    std::byte* out = ReserveBytes(staging.converted, rows.size() * kBytes);
    std::memcpy(out, scales.data(), static_cast<size_t>(rows.size() * kBytes));
    return HostRows{.data = out,
                    .dtype = DType::kF32,
                    .num_rows = rows.size(),
                    .row_stride_bytes = kBytes,
                    .content = RowContent::kScales};
  }

 private:
  const Checkpoint& checkpoint_;
  const TensorInfo& tensor_;
};

}  // namespace

absl::StatusOr<Float8Tensors> FindFloat8(const Checkpoint& checkpoint, const MatrixName& matrix) {
  Float8Tensors found;
  ASSIGN_OR_RETURN(found.values, checkpoint.Find(matrix.name + ".weight"));
  RETURN_IF_ERROR(CheckShape(*found.values, {matrix.rows, matrix.columns}));
  RETURN_IF_ERROR(CheckStoredDType(*found.values, "F8_E4M3"));
  ASSIGN_OR_RETURN(found.scales, FindFloat8Scales(checkpoint, matrix));
  RETURN_IF_ERROR(CheckNumbers(*found.scales));
  const StoredQuantization& stored = *checkpoint.config().stored;
  if (stored.method == StoredQuantization::Method::kFloat8Blocks) {
    RETURN_IF_ERROR(
        CheckShape(*found.scales, {GroupsOf({0, matrix.rows}, stored.block_rows).size(),
                                   GroupsOf({0, matrix.columns}, stored.group_size).size()}));
    return found;
  }
  const int64_t count = found.scales->num_bytes / DTypeBytes(*found.scales->dtype);
  if (count != 1 && found.scales->shape != std::vector<int64_t>{matrix.rows}) {
    RETURN_IF_ERROR(CheckShape(*found.scales, {matrix.rows, 1}));
  }
  return found;
}

absl::StatusOr<std::vector<std::unique_ptr<RowSource>>> Float8Sources(const Checkpoint& checkpoint,
                                                                      const MatrixName& matrix) {
  ASSIGN_OR_RETURN(const Float8Tensors tensors, FindFloat8(checkpoint, matrix));
  std::vector<std::unique_ptr<RowSource>> sources;
  sources.push_back(std::make_unique<Float8Values>(checkpoint, *tensors.values));
  sources.push_back(std::make_unique<Float8Scales>(checkpoint, *tensors.scales));
  return sources;
}

}  // namespace lockstep
