// Matrices in quantized formats of others, laid out here by what their projects document, one value
// at a time, and read as numbers.
#include "model/checkpoint/stored_matrix.h"

#include <bit>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "model/checkpoint/float8_sources.h"
#include "nlohmann/json.hpp"
#include "tests/model/checkpoint/model_directory.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing::TempDirectory;

constexpr int64_t kRows = 16;
constexpr int64_t kColumns = 64;
constexpr int64_t kGroup = 16;
constexpr int64_t kGroups = kColumns / kGroup;

struct FileTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <typename T>
FileTensor Tensor(const std::string& name, const std::string& dtype,
                  const std::vector<int64_t>& shape, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {name, dtype, shape, bytes};
}

// A checkpoint of these tensors alone, which is enough to open a matrix.
class StoredMatrixTest : public ::testing::Test {
 protected:
  void Write(const std::string& quantization, const std::vector<FileTensor>& tensors) {
    directory_.Write("config.json",
                     absl::StrCat(R"({"model_type":"llama","hidden_size":64,"intermediate_size":64,
      "num_hidden_layers":1,"num_attention_heads":8,"vocab_size":6,"torch_dtype":"bfloat16",
      "quantization_config":)",
                                  quantization, "}"));
    std::vector<std::string> entries;
    std::string data;
    for (const FileTensor& tensor : tensors) {
      entries.push_back(absl::StrCat("\"", tensor.name, "\":{\"dtype\":\"", tensor.dtype,
                                     "\",\"shape\":[", absl::StrJoin(tensor.shape, ","),
                                     "],\"data_offsets\":[", data.size(), ",",
                                     data.size() + tensor.bytes.size(), "]}"));
      data += tensor.bytes;
    }
    directory_.Write(
        "model.safetensors",
        testing::SafetensorsBytes(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), data));
    auto opened = Checkpoint::Open(directory_.path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  absl::StatusOr<StoredMatrix> Open() {
    return OpenMatrix(*checkpoint_, {"m", kRows, kColumns, num_k_slices_});
  }

  // Several parts of the matrix, against want(row, column).
  template <typename Want>
  void ExpectNumbers(Want want) {
    const auto matrix = Open();
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_TRUE(matrix->is_converted);
    EXPECT_EQ(matrix->dtype, DType::kBF16);
    ASSERT_EQ(matrix->sources.size(), 1u);
    Staging staging;
    for (const auto& [rows, columns] : {std::pair<Range, Range>{{0, kRows}, {0, kColumns}},
                                        {{3, 5}, {0, kColumns}},
                                        {{0, kRows}, {8, 32}},
                                        {{7, 8}, {40, 64}},
                                        {{1, 2}, {17, 18}}}) {
      const auto read = matrix->sources[0]->Read(rows, columns, staging);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(read->dtype, DType::kF32);
      for (int64_t n = rows.begin; n < rows.end; ++n) {
        const auto* row = reinterpret_cast<const float*>(static_cast<const std::byte*>(read->data) +
                                                         (n - rows.begin) * read->row_stride_bytes);
        for (int64_t k = columns.begin; k < columns.end; ++k) {
          ASSERT_EQ(row[k - columns.begin], want(n, k)) << "[" << n << "," << k << "]";
        }
      }
    }
  }

  std::string OpenError() {
    const auto matrix = Open();
    EXPECT_EQ(matrix.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(matrix.status().message());
  }

  int Draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  std::vector<int> DrawAll(int64_t count, int below) {
    std::vector<int> values(static_cast<size_t>(count));
    for (int& value : values) value = Draw(below);
    return values;
  }
  // Scales that f32, f16 and bf16 can hold: 2^-4 to 2^-1, 8 steps each.
  std::vector<float> DrawScales(int64_t count) {
    std::vector<float> scales(static_cast<size_t>(count));
    for (float& scale : scales) {
      scale = std::ldexp(1.0f + static_cast<float>(Draw(8)) / 8, -4 + Draw(4));
    }
    return scales;
  }

  TempDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::mt19937 random_{7};
  int num_k_slices_ = 1;
};

std::vector<uint16_t> HalfBits(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) {
    // Exact for the scales drawn here: three bits of mantissa, small exponents.
    int exponent = 0;
    const float mantissa = std::frexp(value, &exponent);  // [0.5, 1)
    bits.push_back(
        static_cast<uint16_t>((exponent + 14) << 10 | static_cast<int>((2 * mantissa - 1) * 1024)));
  }
  return bits;
}

constexpr const char* kFloat8Channel =
    R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"group_0":
    {"targets":["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"channel"}}}})";

TEST_F(StoredMatrixTest, Float8PerRow) {
  const std::vector<int> drawn = DrawAll(kRows * kColumns, 0x7f);
  const std::vector<uint8_t> values(drawn.begin(), drawn.end());
  const std::vector<float> scales = DrawScales(kRows);
  for (const char* quantization : {kFloat8Channel, R"({"quant_method":"fbgemm_fp8",
      "activation_scale_ub":1200.0,"modules_to_not_convert":["lm_head"]})"}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{kRows, 1}, {kRows}}) {
      Write(quantization, {Tensor("m.weight", "F8_E4M3", {kRows, kColumns}, values),
                           Tensor("m.weight_scale", "F32", shape, scales)});
      ExpectNumbers([&](int64_t n, int64_t k) {
        return ToFloat(E4M3{values[static_cast<size_t>(n * kColumns + k)]}) *
               scales[static_cast<size_t>(n)];
      });
    }
  }
}

TEST_F(StoredMatrixTest, Float8PerMatrix) {
  const std::vector<uint8_t> values(kRows * kColumns, 0x39);
  Write(R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":
        {"weights":{"num_bits":8,"type":"float","strategy":"tensor"}}}})",
        {Tensor("m.weight", "F8_E4M3", {kRows, kColumns}, values),
         Tensor("m.weight_scale", "F32", {1}, std::vector<float>{0.5f})});
  ExpectNumbers([](int64_t, int64_t) { return 0.5625f; });
}

// By either name of the scales, and with one that is no vector.
TEST_F(StoredMatrixTest, Float8OfFp8AndModelOpt) {
  const std::vector<uint8_t> values(kRows * kColumns, 0x39);
  for (const char* quantization :
       {R"({"quant_method":"fp8","activation_scheme":"static"})",
        R"({"quant_method":"fp8","weight_block_size":null})",
        R"({"quant_method":"modelopt","quant_algo":"FP8"})",
        R"({"quant_method":"modelopt","quant_algo":"FP8_PER_CHANNEL_PER_TOKEN"})"}) {
    for (const char* name : {"m.weight_scale", "m.weight_scale_inv"}) {
      Write(quantization, {Tensor("m.weight", "F8_E4M3", {kRows, kColumns}, values),
                           Tensor("m.input_scale", "F32", {}, std::vector<float>{3.0f}),
                           Tensor(name, "F32", {}, std::vector<float>{0.5f})});
      ExpectNumbers([](int64_t, int64_t) { return 0.5625f; });
    }
  }
}

// Blocks that end neither with rows nor with columns, nor with what is read; all in f32 and bf16.
TEST_F(StoredMatrixTest, Float8InBlocks) {
  constexpr int64_t kBlockRows = 6, kBlockColumns = 24, kDown = 3, kAcross = 3;
  const std::vector<int> drawn = DrawAll(kRows * kColumns, 0x7f);
  const std::vector<uint8_t> values(drawn.begin(), drawn.end());
  const std::vector<float> scales = DrawScales(kDown * kAcross);
  std::vector<uint16_t> bf16;
  for (const float scale : scales) {
    bf16.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16));
  }
  const FileTensor matrix = Tensor("m.weight", "F8_E4M3", {kRows, kColumns}, values);
  const auto want = [&](int64_t n, int64_t k) {
    const int64_t block = n / kBlockRows * kAcross + k / kBlockColumns;
    return ToFloat(E4M3{values[static_cast<size_t>(n * kColumns + k)]}) *
           scales[static_cast<size_t>(block)];
  };
  Write(R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[6,24]})",
        {matrix, Tensor("m.weight_scale_inv", "F32", {kDown, kAcross}, scales)});
  ExpectNumbers(want);
  Write(R"({"quant_method":"fp8","weight_block_size":[6,24]})",
        {matrix, Tensor("m.weight_scale_inv", "BF16", {kDown, kAcross}, bf16)});
  ExpectNumbers(want);
  Write(R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":
        {"weights":{"num_bits":8,"type":"float","strategy":"block","block_structure":[6,24]}}}})",
        {matrix, Tensor("m.weight_scale", "F32", {kDown, kAcross}, scales)});
  ExpectNumbers(want);
  // Where FP8 is kept, that of blocks is not: rows have several scales.
  const auto opened = OpenMatrix(
      *checkpoint_, {.name = "m", .rows = kRows, .columns = kColumns, .keeps_float8 = true});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->native, Quantization::kNone);
  Write(R"({"quant_method":"fp8","weight_block_size":[6,24]})",
        {matrix, Tensor("m.weight_scale_inv", "F32", {kDown, kAcross - 1},
                        std::vector<float>(scales.begin(), scales.begin() + 6))});
  EXPECT_THAT(OpenError(), HasSubstr("m.weight_scale_inv has shape [3, 2]; config.json implies "
                                     "[3, 3]"));
}

// Of a matrix that is to be kept so: bytes and scales of some rows and columns.
TEST_F(StoredMatrixTest, Float8AsItLies) {
  const std::vector<int> drawn = DrawAll(kRows * kColumns, 0x7f);
  const std::vector<uint8_t> values(drawn.begin(), drawn.end());
  const std::vector<float> scales = DrawScales(kRows);
  const std::vector<float> one = {0.25f};
  for (const std::vector<float>* stored : {&scales, &one}) {
    const std::vector<int64_t> shape = {static_cast<int64_t>(stored->size())};
    Write(kFloat8Channel, {Tensor("m.weight", "F8_E4M3", {kRows, kColumns}, values),
                           Tensor("m.weight_scale", "F32", shape, *stored)});
    const auto matrix = OpenMatrix(
        *checkpoint_, {.name = "m", .rows = kRows, .columns = kColumns, .keeps_float8 = true});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_EQ(matrix->native, Quantization::kFp8);
    EXPECT_EQ(matrix->activation_bound, kNoActivationBound);
    EXPECT_FALSE(matrix->is_converted);
    ASSERT_EQ(matrix->sources.size(), 2u);
    Staging staging;
    const auto rows = matrix->sources[0]->Read({3, 7}, {8, 40}, staging);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_EQ(rows->content, RowContent::kQuantized);
    for (int64_t i = 0; i < 4 * 32; ++i) {
      const auto* row = static_cast<const uint8_t*>(rows->data) + i / 32 * rows->row_stride_bytes;
      EXPECT_EQ(row[i % 32], values[static_cast<size_t>((3 + i / 32) * kColumns + 8 + i % 32)]);
    }
    const auto read = matrix->sources[1]->Read({3, 7}, {8, 40}, staging);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(read->content, RowContent::kScales);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(static_cast<const float*>(read->data)[i],
                stored->size() == 1 ? one[0] : scales[3 + i]);
    }
  }
}

TEST_F(StoredMatrixTest, UnquantizedMatricesOfAQuantizedCheckpoint) {
  std::vector<float> values(kRows * kColumns, 2.0f);
  Write(kFloat8Channel, {Tensor("m.weight", "F32", {kRows, kColumns}, values)});
  const auto matrix = Open();
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_FALSE(matrix->is_converted);
  EXPECT_EQ(matrix->dtype, DType::kF32);
}

// Values of `bits` bits in 32-bit words, the first in the lowest bits.
std::vector<uint32_t> Words(const std::vector<int>& values, int bits) {
  const size_t per_word = static_cast<size_t>(32 / bits);
  std::vector<uint32_t> words(values.size() / per_word);
  for (size_t i = 0; i < values.size(); ++i) {
    words[i / per_word] |= static_cast<uint32_t>(values[i])
                           << (i % per_word * static_cast<size_t>(bits));
  }
  return words;
}

TEST_F(StoredMatrixTest, PackedInOtherGroupsThanOurs) {
  for (const int bits : {4, 8}) {
    const std::vector<int> values = DrawAll(kRows * kColumns, 1 << bits);
    const std::vector<float> scales = DrawScales(kRows * kGroups);
    Write(absl::StrCat(R"({"quant_method":"compressed-tensors","format":"pack-quantized",
        "config_groups":{"group_0":{"weights":{"type":"int","symmetric":true,"strategy":"group",
        "group_size":16,"num_bits":)",
                       bits, "}}}}"),
          {Tensor("m.weight_packed", "I32", {kRows, kColumns * bits / 32}, Words(values, bits)),
           Tensor("m.weight_scale", "F32", {kRows, kGroups}, scales)});
    ExpectNumbers([&](int64_t n, int64_t k) {
      const int q = values[static_cast<size_t>(n * kColumns + k)] - (1 << (bits - 1));
      return static_cast<float>(q) * scales[static_cast<size_t>(n * kGroups + k / kGroup)];
    });
  }
}

// Products that cut the columns within groups take numbers, whichever part of them a rank reads.
TEST_F(StoredMatrixTest, PackedInOurGroupsBecomesNumbersWhereKSlicesAreNotWholeGroups) {
  for (const int bits : {4, 8}) {
    const int64_t group = bits == 4 ? 32 : 64;
    const int64_t num_groups = kColumns / group;
    const std::vector<int> values = DrawAll(kRows * kColumns, 1 << bits);
    const std::vector<float> scales = DrawScales(kRows * num_groups);
    Write(PackedQuantizationJson(bits == 4 ? Quantization::kInt4 : Quantization::kInt8).dump(),
          {Tensor("m.weight_packed", "I32", {kRows, kColumns * bits / 32}, Words(values, bits)),
           Tensor("m.weight_scale", "F32", {kRows, num_groups}, scales)});
    const auto whole = Open();
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_NE(whole->native, Quantization::kNone);
    EXPECT_EQ(whole->sources.size(), 2u);
    num_k_slices_ = 8;
    ExpectNumbers([&](int64_t n, int64_t k) {
      const int q = values[static_cast<size_t>(n * kColumns + k)] - (1 << (bits - 1));
      return static_cast<float>(q) * scales[static_cast<size_t>(n * num_groups + k / group)];
    });
    num_k_slices_ = 1;
  }
}

// W transposed, [k][n]; words along k for GPTQ, along n for zero points.
class GptqTest : public StoredMatrixTest {
 protected:
  void Check(int bits, const std::string& extra, int stored_offset, bool act_order) {
    const std::vector<int> values = DrawAll(kColumns * kRows, 1 << bits);
    const std::vector<int> zeros = DrawAll(kGroups * kRows, 1 << bits);
    const std::vector<float> scales = DrawScales(kGroups * kRows);
    std::vector<int> along_k;  // word after word: 32 / bits consecutive k of one n
    const int64_t per_word = 32 / bits;
    for (int64_t first = 0; first < kColumns; first += per_word) {
      for (int64_t n = 0; n < kRows; ++n) {
        for (int64_t k = first; k < first + per_word; ++k) {
          along_k.push_back(values[static_cast<size_t>(k * kRows + n)]);
        }
      }
    }
    // The offset is taken from whole words: one of zero points 5 and 0 becomes 3 and 15 in int4.
    auto zero_words = Words(zeros, bits);
    for (auto& word : zero_words) {
      word -= static_cast<uint32_t>(stored_offset) * (bits == 4 ? 0x11111111u : 0x01010101u);
    }
    std::vector<int32_t> groups;
    for (int64_t k = 0; k < kColumns; ++k) {
      groups.push_back(static_cast<int32_t>(act_order ? Draw(kGroups) : k / kGroup));
    }
    std::vector<FileTensor> tensors = {
        Tensor("m.qweight", "I32", {kColumns / per_word, kRows}, Words(along_k, bits)),
        Tensor("m.qzeros", "I32", {kGroups, kRows / per_word}, zero_words),
        Tensor("m.scales", "F16", {kGroups, kRows}, HalfBits(scales))};
    if (act_order) tensors.push_back(Tensor("m.g_idx", "I32", {kColumns}, groups));
    Write(absl::StrCat(R"({"quant_method":"gptq","group_size":16,"bits":)", bits, extra, "}"),
          tensors);
    ExpectNumbers([&](int64_t n, int64_t k) {
      const size_t at = static_cast<size_t>(groups[static_cast<size_t>(k)] * kRows + n);
      return static_cast<float>(values[static_cast<size_t>(k * kRows + n)] - zeros[at]) *
             scales[at];
    });
  }
};

TEST_F(GptqTest, FirstFormatStoresWordsOfZeroPointsLessOneEach) { Check(4, "", 1, false); }
TEST_F(GptqTest, SecondFormatStoresThemAsTheyAre) {
  Check(4, R"(,"checkpoint_format":"gptq_v2")", 0, false);
}
TEST_F(GptqTest, ActOrderNamesEachColumnsGroup) { Check(4, R"(,"desc_act":true)", 1, true); }
TEST_F(GptqTest, EightBits) { Check(8, "", 1, true); }

TEST_F(StoredMatrixTest, AGroupOutsideIsRefused) {
  std::vector<int32_t> groups(kColumns, 0);
  groups[5] = 4;
  Write(R"({"quant_method":"gptq","group_size":16,"bits":4})",
        {Tensor("m.qweight", "I32", {kColumns / 8, kRows},
                std::vector<int32_t>(kColumns / 8 * kRows)),
         Tensor("m.qzeros", "I32", {kGroups, kRows / 8}, std::vector<int32_t>(kGroups * kRows / 8)),
         Tensor("m.scales", "F32", {kGroups, kRows}, std::vector<float>(kGroups * kRows)),
         Tensor("m.g_idx", "I32", {kColumns}, groups)});
  Staging staging;
  const auto matrix = Open();
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  const auto read = matrix->sources[0]->Read({0, kRows}, {0, kColumns}, staging);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("names the group 4"));
}

TEST_F(StoredMatrixTest, Awq) {
  const std::vector<int> values = DrawAll(kColumns * kRows, 16);
  const std::vector<int> zeros = DrawAll(kGroups * kRows, 16);
  const std::vector<float> scales = DrawScales(kGroups * kRows);
  // Place i of a word holds output kOrder[i] of its eight.
  const auto interleaved = [](const std::vector<int>& plain) {
    constexpr size_t kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
    std::vector<int> mixed(plain.size());
    for (size_t i = 0; i < plain.size(); ++i) mixed[i] = plain[i / 8 * 8 + kOrder[i % 8]];
    return mixed;
  };
  Write(R"({"quant_method":"awq","bits":4,"group_size":16,"zero_point":true,"version":"gemm"})",
        {Tensor("m.qweight", "I32", {kColumns, kRows / 8}, Words(interleaved(values), 4)),
         Tensor("m.qzeros", "I32", {kGroups, kRows / 8}, Words(interleaved(zeros), 4)),
         Tensor("m.scales", "F16", {kGroups, kRows}, HalfBits(scales))});
  ExpectNumbers([&](int64_t n, int64_t k) {
    const size_t at = static_cast<size_t>(k / kGroup * kRows + n);
    return static_cast<float>(values[static_cast<size_t>(k * kRows + n)] - zeros[at]) * scales[at];
  });
}

TEST_F(StoredMatrixTest, MissingAndMisshapenTensorsAreNamed) {
  const std::vector<uint8_t> values(kRows * kColumns);
  Write(kFloat8Channel, {Tensor("m.weight", "F8_E4M3", {kRows, kColumns}, values)});
  EXPECT_THAT(OpenError(), HasSubstr("no tensor \"m.weight_scale\""));
  Write(kFloat8Channel, {Tensor("m.weight", "F8_E4M3", {kRows, kColumns}, values),
                         Tensor("m.weight_scale", "F32", {2, 2}, std::vector<float>(4))});
  EXPECT_THAT(OpenError(), HasSubstr("m.weight_scale has shape [2, 2]"));
}

}  // namespace
}  // namespace lockstep
