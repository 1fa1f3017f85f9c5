// Layouts: compressed-tensors' pack_to_int32 (compressors/quantized_compressors/pack_quantized.py);
// AutoGPTQ's QuantLinear (nn_modules/qlinear/qlinear_cuda.py) and GPTQModel's two formats of it
// (utils/model.py, convert_gptq_v1_to_v2_format_module); AutoAWQ's WQLinear_GEMM
// (awq/modules/linear/gemm.py).
#include "model/checkpoint/foreign_sources.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/host_rows.h"
#include "model/checkpoint/float8_sources.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using Method = StoredQuantization::Method;

// Part of a matrix of numbers, as f32.
absl::StatusOr<std::vector<float>> ReadFloats(const Checkpoint& checkpoint,
                                              const TensorInfo& tensor, Range rows, Range columns) {
  const int64_t count = rows.size() * columns.size();
  std::vector<std::byte> bytes(static_cast<size_t>(count * DTypeBytes(*tensor.dtype)));
  RETURN_IF_ERROR(
      checkpoint.Read(tensor, rows.begin, rows.end, columns.begin, columns.end, bytes.data()));
  std::vector<float> values(static_cast<size_t>(count));
  WidenRow(bytes.data(), *tensor.dtype, count, values.data());
  return values;
}

HostRows FloatRows(const std::byte* data, Range rows, Range columns) {
  return {.data = data,
          .dtype = DType::kF32,
          .num_rows = rows.size(),
          .row_stride_bytes = columns.size() * static_cast<int64_t>(sizeof(float))};
}

float* ReserveFloats(std::vector<std::byte>& memory, Range rows, Range columns) {
  return reinterpret_cast<float*>(
      ReserveBytes(memory, rows.size() * columns.size() * static_cast<int64_t>(sizeof(float))));
}

// ---- row by row: pack-quantized and FP8 ----

class ScaledRows final : public RowSource {
 public:
  // scales: [rows / group_rows][num_groups], rounded up, each for group columns; or a single one.
  struct Format {
    int bits = 8;
    bool is_float8 = false;
    int64_t group = 0;
    int64_t num_groups = 1;
    int64_t group_rows = 1;
  };
  ScaledRows(const Checkpoint& checkpoint, const TensorInfo& values, const TensorInfo& scales,
             const Format& format)
      : checkpoint_(checkpoint), values_(values), scales_(scales), format_(format) {
    for (size_t i = 0; i < numbers_.size(); ++i) {
      numbers_[i] = format.is_float8
                        ? ToFloat(E4M3{static_cast<uint8_t>(i)})
                        : static_cast<float>(static_cast<int>(i) - (1 << (format.bits - 1)));
    }
  }

  int64_t StagingRowBytes(Range columns) const override { return columns.size() * 4; }
  int64_t StoredBytes(Range rows, Range columns) const override {
    return rows.size() * PackedBytes(columns, format_.bits).size();
  }
  absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const override {
    const Range bytes = PackedBytes(columns, format_.bits);
    std::byte* stored = ReserveBytes(staging.stored, rows.size() * bytes.size());
    RETURN_IF_ERROR(
        checkpoint_.ReadBytes(values_, rows.begin, rows.end, bytes.begin, bytes.end, stored));
    const Range scale_rows = GroupsOf(rows, format_.group_rows);
    ASSIGN_OR_RETURN(const std::vector<float> scales,
                     ReadScales(checkpoint_, scales_, scale_rows, format_.num_groups));
    float* out = ReserveFloats(staging.converted, rows, columns);
    std::vector<std::byte> unpacked(static_cast<size_t>(format_.bits == 4 ? columns.size() : 0));
    for (int64_t row = 0; row < rows.size(); ++row) {
      const std::byte* from = stored + row * bytes.size();
      if (format_.bits == 4) {
        UnpackNibbles(from, columns.begin % 2, columns.size(), unpacked.data());
        from = unpacked.data();
      }
      const int64_t scale_row = (rows.begin + row) / format_.group_rows - scale_rows.begin;
      ScaleRow(from, columns, &scales[static_cast<size_t>(scale_row * format_.num_groups)],
               out + row * columns.size());
    }
    return FloatRows(staging.converted.data(), rows, columns);
  }

 private:
  void ScaleRow(const std::byte* from, Range columns, const float* scales, float* out) const {
    for (int64_t column = columns.begin; column < columns.end;) {
      const int64_t g = column / format_.group;
      const int64_t end = std::min(columns.end, (g + 1) * format_.group);
      for (; column < end; ++column) {
        const int64_t i = column - columns.begin;
        out[i] = numbers_[static_cast<size_t>(from[i])] * scales[g];
      }
    }
  }

  const Checkpoint& checkpoint_;
  const TensorInfo& values_;
  const TensorInfo& scales_;
  const Format format_;
  std::array<float, 256> numbers_;  // what the stored bits stand for
};

absl::StatusOr<std::unique_ptr<RowSource>> OpenFloat8(const Checkpoint& checkpoint,
                                                      const MatrixName& matrix) {
  ASSIGN_OR_RETURN(const Float8Tensors tensors, FindFloat8(checkpoint, matrix));
  const StoredQuantization& stored = *checkpoint.config().stored;
  ScaledRows::Format format{.bits = 8, .is_float8 = true, .group = matrix.columns};
  if (stored.method == Method::kFloat8Blocks) {
    format.group = stored.group_size;
    format.num_groups = GroupsOf({0, matrix.columns}, stored.group_size).size();
    format.group_rows = stored.block_rows;
  }
  return std::make_unique<ScaledRows>(checkpoint, *tensors.values, *tensors.scales, format);
}

absl::StatusOr<std::unique_ptr<RowSource>> OpenPacked(const Checkpoint& checkpoint,
                                                      const MatrixName& matrix) {
  ASSIGN_OR_RETURN(const PackedTensors tensors, FindPacked(checkpoint, matrix));
  return std::make_unique<ScaledRows>(checkpoint, *tensors.values, *tensors.scales,
                                      ScaledRows::Format{.bits = checkpoint.config().stored->bits,
                                                         .group = tensors.group,
                                                         .num_groups = tensors.num_groups});
}

// ---- column by column: GPTQ and AWQ keep W transposed, [in_features, out_features] ----

// How 32-bit words hold the transposed matrix's values, and its zero points.
struct WordLayout {
  int bits = 4;
  bool along_k = true;  // GPTQ: a word is consecutive k of one output; AWQ: outputs of one k
  std::array<int, 8> place = {};  // where in a word each of its values lies

  int per_word() const { return 32 / bits; }
  int At(uint32_t word, int64_t index) const {
    const int shift = place[static_cast<size_t>(index % per_word())] * bits;
    return static_cast<int>(word >> shift & ((1u << bits) - 1));
  }
};

class TransposedRows final : public RowSource {
 public:
  struct Tensors {
    const TensorInfo* values = nullptr;
    const TensorInfo* scales = nullptr;  // [num_groups][rows]
    const TensorInfo* zeros = nullptr;   // likewise, in words along rows
    const TensorInfo* groups = nullptr;  // of each k; null: consecutive
  };
  TransposedRows(const Checkpoint& checkpoint, const Tensors& tensors, const WordLayout& layout,
                 int64_t group, int zero_offset)
      : checkpoint_(checkpoint),
        tensors_(tensors),
        layout_(layout),
        group_(group),
        num_groups_(tensors.scales->shape[0]),
        zero_words_offset_(static_cast<uint32_t>(zero_offset) *
                           (~uint32_t{0} / ((1u << layout.bits) - 1))) {}

  // Less than it is: a piece is read in strips, one for every k or word of k, that are as wide as
  // it has rows. So it should have hundreds.
  int64_t StagingRowBytes(Range columns) const override { return columns.size() / 4; }
  int64_t StoredBytes(Range rows, Range columns) const override {
    return rows.size() * columns.size() * layout_.bits / 8;
  }
  absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const override {
    const Range words_k = layout_.along_k ? Words(columns) : columns;
    const Range words_n = layout_.along_k ? rows : Words(rows);
    ASSIGN_OR_RETURN(const uint32_t* words,
                     ReadWords(*tensors_.values, words_k, words_n, staging.stored));
    ASSIGN_OR_RETURN(const Tables tables, ReadTables(rows, columns));
    float* out = ReserveFloats(staging.converted, rows, columns);
    for (int64_t k = columns.begin; k < columns.end; ++k) {
      const int64_t first = tables.groups[static_cast<size_t>(k - columns.begin)] * rows.size();
      const uint32_t* strip =
          words + ((layout_.along_k ? k / layout_.per_word() : k) - words_k.begin) * words_n.size();
      for (int64_t n = rows.begin; n < rows.end; ++n) {
        const uint32_t word = strip[(layout_.along_k ? n : n / layout_.per_word()) - words_n.begin];
        const float q = static_cast<float>(layout_.At(word, layout_.along_k ? k : n));
        const size_t at = static_cast<size_t>(first + n - rows.begin);
        out[(n - rows.begin) * columns.size() + k - columns.begin] =
            (q - tables.zeros[at]) * tables.scales[at];
      }
    }
    return FloatRows(staging.converted.data(), rows, columns);
  }

 private:
  struct Tables {
    std::vector<float> scales;    // [num_groups][rows of the piece]
    std::vector<float> zeros;     // likewise
    std::vector<int32_t> groups;  // [columns of the piece]
  };

  Range Words(Range values) const {
    return {values.begin / layout_.per_word(),
            (values.end + layout_.per_word() - 1) / layout_.per_word()};
  }
  absl::StatusOr<const uint32_t*> ReadWords(const TensorInfo& tensor, Range rows, Range words,
                                            std::vector<std::byte>& memory) const {
    std::byte* bytes = ReserveBytes(memory, rows.size() * words.size() * 4);
    RETURN_IF_ERROR(
        checkpoint_.ReadBytes(tensor, rows.begin, rows.end, words.begin * 4, words.end * 4, bytes));
    return reinterpret_cast<const uint32_t*>(bytes);
  }
  absl::StatusOr<Tables> ReadTables(Range rows, Range columns) const {
    Tables tables;
    ASSIGN_OR_RETURN(tables.scales,
                     ReadFloats(checkpoint_, *tensors_.scales, {0, num_groups_}, rows));
    const Range words = Words(rows);
    std::vector<std::byte> memory;
    ASSIGN_OR_RETURN(const uint32_t* zeros,
                     ReadWords(*tensors_.zeros, {0, num_groups_}, words, memory));
    for (int64_t g = 0; g < num_groups_; ++g) {
      for (int64_t n = rows.begin; n < rows.end; ++n) {
        const uint32_t word = zeros[g * words.size() + n / layout_.per_word() - words.begin];
        tables.zeros.push_back(static_cast<float>(layout_.At(word + zero_words_offset_, n)));
      }
    }
    tables.groups.resize(static_cast<size_t>(columns.size()));
    if (tensors_.groups == nullptr) {
      for (int64_t k = columns.begin; k < columns.end; ++k) {
        tables.groups[static_cast<size_t>(k - columns.begin)] = static_cast<int32_t>(k / group_);
      }
      return tables;
    }
    RETURN_IF_ERROR(checkpoint_.ReadBytes(*tensors_.groups, 0, 1, columns.begin * 4,
                                          columns.end * 4, tables.groups.data()));
    for (const int32_t group : tables.groups) {
      if (group >= 0 && group < num_groups_) continue;
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensors_.groups->name),
                                                     " names the group ", group, ", must be 0 to ",
                                                     num_groups_ - 1));
    }
    return tables;
  }

  const Checkpoint& checkpoint_;
  const Tensors tensors_;
  const WordLayout layout_;
  const int64_t group_;
  const int64_t num_groups_;
  // Added to whole words, as GPTQModel takes it away from them: under a zero point of 0 its
  // subtraction borrows from the value above, and the addition's carry gives it back.
  const uint32_t zero_words_offset_;
};

absl::StatusOr<std::unique_ptr<RowSource>> OpenTransposed(const Checkpoint& checkpoint,
                                                          const MatrixName& matrix) {
  const StoredQuantization& stored = *checkpoint.config().stored;
  WordLayout layout{.bits = stored.bits, .along_k = stored.method == Method::kGptq};
  // AWQ interleaves the outputs of a word: places 0 to 7 hold outputs 0, 2, 4, 6, 1, 3, 5, 7.
  layout.place =
      layout.along_k ? std::array{0, 1, 2, 3, 4, 5, 6, 7} : std::array{0, 4, 1, 5, 2, 6, 3, 7};
  const int64_t per_word = layout.per_word();
  if (matrix.rows % per_word != 0 || matrix.columns % per_word != 0) {
    return absl::InvalidArgumentError(absl::StrCat("matrix ", Quoted(matrix.name), " is [",
                                                   matrix.rows, ", ", matrix.columns,
                                                   "], not whole words of ", per_word));
  }
  const int64_t group = stored.group_size == 0 ? matrix.columns : stored.group_size;
  const int64_t num_groups = (matrix.columns + group - 1) / group;
  TransposedRows::Tensors tensors;
  ASSIGN_OR_RETURN(tensors.values, checkpoint.Find(matrix.name + ".qweight"));
  RETURN_IF_ERROR(CheckStoredDType(*tensors.values, "I32"));
  RETURN_IF_ERROR(CheckShape(*tensors.values,
                             layout.along_k
                                 ? std::vector<int64_t>{matrix.columns / per_word, matrix.rows}
                                 : std::vector<int64_t>{matrix.columns, matrix.rows / per_word}));
  ASSIGN_OR_RETURN(tensors.scales, checkpoint.Find(matrix.name + ".scales"));
  RETURN_IF_ERROR(CheckShape(*tensors.scales, {num_groups, matrix.rows}));
  RETURN_IF_ERROR(CheckNumbers(*tensors.scales));
  ASSIGN_OR_RETURN(tensors.zeros, checkpoint.Find(matrix.name + ".qzeros"));
  RETURN_IF_ERROR(CheckShape(*tensors.zeros, {num_groups, matrix.rows / per_word}));
  RETURN_IF_ERROR(CheckStoredDType(*tensors.zeros, "I32"));
  if (const auto groups = checkpoint.Find(matrix.name + ".g_idx"); groups.ok()) {
    tensors.groups = *groups;
    RETURN_IF_ERROR(CheckShape(*tensors.groups, {matrix.columns}));
    RETURN_IF_ERROR(CheckStoredDType(*tensors.groups, "I32"));
  }
  return std::make_unique<TransposedRows>(checkpoint, tensors, layout, group, stored.zero_offset);
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadScales(const Checkpoint& checkpoint,
                                              const TensorInfo& scales, Range rows,
                                              int64_t num_groups) {
  const int64_t count = scales.num_bytes / DTypeBytes(*scales.dtype);
  if (count == 1) {
    ASSIGN_OR_RETURN(const std::vector<float> one, ReadFloats(checkpoint, scales, {0, 1}, {0, 1}));
    return std::vector<float>(static_cast<size_t>(rows.size() * num_groups), one[0]);
  }
  // A vector has its rows side by side.
  if (scales.shape.size() < 2) return ReadFloats(checkpoint, scales, {0, 1}, rows);
  return ReadFloats(checkpoint, scales, rows, {0, num_groups});
}

absl::StatusOr<PackedTensors> FindPacked(const Checkpoint& checkpoint, const MatrixName& matrix) {
  const StoredQuantization& stored = *checkpoint.config().stored;
  const int64_t per_word = 32 / stored.bits;
  PackedTensors found;
  found.group = stored.group_size == 0 ? matrix.columns : stored.group_size;
  found.num_groups = (matrix.columns + found.group - 1) / found.group;
  ASSIGN_OR_RETURN(found.values, checkpoint.Find(matrix.name + ".weight_packed"));
  RETURN_IF_ERROR(
      CheckShape(*found.values, {matrix.rows, (matrix.columns + per_word - 1) / per_word}));
  RETURN_IF_ERROR(CheckStoredDType(*found.values, "I32"));
  ASSIGN_OR_RETURN(found.scales, checkpoint.Find(matrix.name + ".weight_scale"));
  RETURN_IF_ERROR(CheckShape(*found.scales, {matrix.rows, found.num_groups}));
  RETURN_IF_ERROR(CheckNumbers(*found.scales));
  return found;
}

absl::StatusOr<std::unique_ptr<RowSource>> ForeignSource(const Checkpoint& checkpoint,
                                                         const MatrixName& matrix) {
  switch (checkpoint.config().stored->method) {
    case Method::kPacked:
      return OpenPacked(checkpoint, matrix);
    case Method::kFloat8:
    case Method::kFloat8Blocks:
      return OpenFloat8(checkpoint, matrix);
    case Method::kGptq:
    case Method::kAwq:
      return OpenTransposed(checkpoint, matrix);
  }
  return absl::InternalError("unknown method");
}

absl::Status CheckShape(const TensorInfo& tensor, const std::vector<int64_t>& shape) {
  if (tensor.shape == shape) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", tensor.name, " has shape [", absl::StrJoin(tensor.shape, ", "),
                   "]; config.json implies [", absl::StrJoin(shape, ", "), "]"));
}

absl::Status CheckStoredDType(const TensorInfo& tensor, std::string_view dtype_name) {
  if (tensor.dtype_name == dtype_name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " has dtype ",
                                                 tensor.dtype_name, "; config.json implies ",
                                                 std::string(dtype_name)));
}

absl::Status CheckNumbers(const TensorInfo& tensor) {
  if (tensor.dtype.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " has dtype ",
                                                 tensor.dtype_name, "; supported: F32, F16, BF16"));
}

std::byte* ReserveBytes(std::vector<std::byte>& memory, int64_t num_bytes) {
  if (std::ssize(memory) < num_bytes) memory.resize(static_cast<size_t>(num_bytes));
  return memory.data();
}

std::byte* ReserveRows(Staging& staging, int64_t num_bytes) {
  if (num_bytes <= std::ssize(staging.pinned)) return staging.pinned.data();
  return ReserveBytes(staging.stored, num_bytes);
}

Range GroupsOf(Range elements, int64_t group) {
  return {elements.begin / group, (elements.end + group - 1) / group};
}

Range PackedBytes(Range columns, int bits) {
  return {columns.begin * bits / 8, (columns.end * bits + 7) / 8};
}

void UnpackNibbles(const std::byte* packed, int64_t first, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const std::byte pair = packed[(first + i) / 2];
    out[i] = (first + i) % 2 == 0 ? pair & std::byte{15} : pair >> 4;
  }
}

}  // namespace lockstep
