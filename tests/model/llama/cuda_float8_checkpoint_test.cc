// Checkpoints in FP8 on GPUs: matrices are kept as they are stored, where the GPU multiplies fp8.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/checkpoint/foreign_sources.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/llama/llama_stage.h"
#include "nlohmann/json.hpp"
#include "parallel/communicator.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/temp_directory.h"
#endif

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::vector<std::pair<std::string, StoredTensor>>;

template <typename T>
StoredTensor Stored(const std::string& dtype, const std::vector<int64_t>& shape,
                    const std::vector<T>& values) {
  return {dtype, shape,
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

// A matrix of finite e4m3 numbers, the largest of them in each row, by scales that are powers of
// two: quantizing the numbers it stands for gives it back.
struct Float8Matrix {
  std::vector<uint8_t> values;
  std::vector<float> scales;
  std::vector<float> numbers;
};
Float8Matrix DrawMatrix(int64_t rows, int64_t columns, std::mt19937& random) {
  Float8Matrix matrix;
  for (int64_t row = 0; row < rows; ++row) {
    matrix.scales.push_back(std::ldexp(1.0f, -11 - static_cast<int>(random() % 3)));
    for (int64_t column = 0; column < columns; ++column) {
      const auto sign = static_cast<uint8_t>(random() % 2 << 7);
      const auto magnitude = static_cast<uint8_t>(column == row % columns ? 0x7e : random() % 0x7f);
      matrix.values.push_back(sign | magnitude);
      matrix.numbers.push_back(Float8ToFloat(matrix.values.back()) * matrix.scales.back());
    }
  }
  return matrix;
}

// The same numbers twice: in FP8, its attention spared or not, and as they are.
class Float8CheckpointTest : public ::testing::Test {
 protected:
  void Write(bool spares_attention, const ModelConfig& config = SmallConfig(4)) {
    std::mt19937 random(3);
    StoredTensors float8, plain;
    for (const WrittenTensor& tensor : TemporaryModel::TensorsOf(config)) {
      const bool is_matrix = tensor.name.find("_proj") != std::string::npos;
      const bool is_spared = tensor.name.find("self_attn") != std::string::npos && spares_attention;
      const int64_t rows = tensor.shape[0];
      const int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
      const Float8Matrix matrix = DrawMatrix(rows, columns, random);
      std::vector<float> numbers = matrix.numbers;
      if (tensor.shape.size() == 1) numbers.assign(static_cast<size_t>(rows), 1.0f);
      plain.emplace_back(tensor.name, Stored("F32", tensor.shape, numbers));
      if (!is_matrix || is_spared) {
        float8.push_back(plain.back());
        continue;
      }
      float8.emplace_back(tensor.name, Stored("F8_E4M3", tensor.shape, matrix.values));
      float8.emplace_back(tensor.name + "_scale", Stored("F32", {rows, 1}, matrix.scales));
    }
    ModelConfig written = config;
    written.dtype = DType::kF32;
    nlohmann::json json = nlohmann::json::parse(ModelConfigJson(written));
    plain_ = WriteCheckpoint("plain", json, plain);
    nlohmann::json left = {"lm_head"};
    if (spares_attention) left.push_back("model.layers.0.self_attn.q_proj");
    json["quantization_config"] = {{"quant_method", "fbgemm_fp8"},
                                   {"activation_scale_ub", 1200.0},
                                   {"modules_to_not_convert", left}};
    float8_ = WriteCheckpoint("float8", json, float8);
  }

  std::unique_ptr<Checkpoint> WriteCheckpoint(const char* name, const nlohmann::json& config,
                                              const StoredTensors& tensors) {
    const std::filesystem::path directory = directory_ / name;
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "config.json") << config.dump();
    nlohmann::ordered_json header;
    size_t offset = 0;
    for (const auto& [tensor, stored] : tensors) {
      header[tensor] = {{"dtype", stored.dtype},
                        {"shape", stored.shape},
                        {"data_offsets", {offset, offset + stored.bytes.size()}}};
      offset += stored.bytes.size();
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::ofstream file(directory / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof(length));
    file << text;
    for (const auto& tensor : tensors) file << tensor.second.bytes;
    file.close();
    auto opened = Checkpoint::Open(directory);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }

  static std::unique_ptr<Backend> MakeBackend() {
    auto backend = cuda::CudaBackend::Create({.compute = DType::kF32, .deterministic = true});
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  }
  static StageOptions Stage(Quantization quantize) {
    StageOptions stage;
    stage.quantize = quantize;
    stage.limits = {.max_batched_tokens = 64, .max_num_seqs = 8, .max_model_len = 100};
    return stage;
  }
  static std::vector<Outcome> Run(const Checkpoint& checkpoint, Quantization quantize) {
    DriveOptions options;
    options.make_backend = MakeBackend;
    options.stage = Stage(quantize);
    auto outcomes = Drive(checkpoint, options, {{{1, 5, 9, 300, 7}, 4}, {{2}, 6}});
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return outcomes.ok() ? *std::move(outcomes) : std::vector<Outcome>{};
  }
  static absl::StatusOr<int64_t> HeldBytes(const Checkpoint& checkpoint, Quantization quantize) {
    const std::unique_ptr<Backend> backend = MakeBackend();
    RankGroups groups;
    groups.tp = MakeSelfCommunicator();
    groups.pp = MakeSelfCommunicator();
    const auto stage = LlamaStage::Load(checkpoint, *ProcessGrid::Create(1, 1), 0, *backend, groups,
                                        Stage(quantize), {});
    if (!stage.ok()) return stage.status();
    return (*stage)->load_stats().weight_bytes;
  }
  void ExpectHeldBytesAreThoseExpected() {
    const auto held = HeldBytes(*float8_, Quantization::kNone);
    ASSERT_TRUE(held.ok()) << held.status();
    const auto expected =
        HeldShards(float8_->config(), 1, 1, {.dtype = DType::kF32, .keeps_float8 = true});
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(*held, expected->front().weight_bytes);
  }

  const TempDirectory directory_;
  std::unique_ptr<Checkpoint> float8_;
  std::unique_ptr<Checkpoint> plain_;
};

TEST_F(Float8CheckpointTest, MatricesAreTakenAsTheyAre) {
  SKIP_WITHOUT_FP8();
  Write(/*spares_attention=*/false);
  const std::vector<Outcome> want = Run(*plain_, Quantization::kFp8);
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kNone), want));
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kFp8), want));
  EXPECT_FALSE(SameBits(Run(*plain_, Quantization::kNone), want));
  ExpectHeldBytesAreThoseExpected();
}

TEST_F(Float8CheckpointTest, OthersStayAsTheyAreUnlessFp8IsAskedFor) {
  SKIP_WITHOUT_FP8();
  Write(/*spares_attention=*/true);
  const std::vector<Outcome> all_fp8 = Run(*plain_, Quantization::kFp8);
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kFp8), all_fp8));
  EXPECT_FALSE(SameBits(Run(*float8_, Quantization::kNone), all_fp8));
  ExpectHeldBytesAreThoseExpected();
  EXPECT_LT(*HeldBytes(*float8_, Quantization::kFp8), *HeldBytes(*float8_, Quantization::kNone));
  EXPECT_LT(*HeldBytes(*float8_, Quantization::kNone), *HeldBytes(*plain_, Quantization::kNone));
}

#ifdef LOCKSTEP_CUDA_EMULATION
TEST_F(Float8CheckpointTest, GpusWithoutFp8TakeNumbers) {
  cuda_emulation::SetDevice({.compute_major = 8, .compute_minor = 0});
  Write(/*spares_attention=*/false);
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kNone), Run(*plain_, Quantization::kNone)));
  EXPECT_EQ(*HeldBytes(*float8_, Quantization::kNone), *HeldBytes(*plain_, Quantization::kNone));
  cuda_emulation::SetDevice({});
}
#endif

// 168 columns are no multiple of 16.
TEST_F(Float8CheckpointTest, MatricesOfOtherWidthsBecomeNumbers) {
  SKIP_WITHOUT_FP8();
  ModelConfig config = SmallConfig(4);
  config.intermediate_size = 168;
  Write(/*spares_attention=*/true, config);
  const auto held = HeldBytes(*float8_, Quantization::kNone);
  ASSERT_TRUE(held.ok()) << held.status();
  const int64_t gate_up = 2 * config.intermediate_size;
  const int64_t saved = config.num_layers * (3 * gate_up * config.hidden_size - 4 * gate_up);
  EXPECT_EQ(*held, *HeldBytes(*plain_, Quantization::kNone) - saved);
}

TEST_F(Float8CheckpointTest, WhatIsNotFiniteIsNamed) {
  SKIP_WITHOUT_FP8();
  Write(/*spares_attention=*/true);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const TensorInfo* up = *float8_->Find(name);
  const auto path = float8_->directory() / "model.safetensors";
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof(header));
    const int64_t row = 5;
    file.seekp(static_cast<std::streamoff>(up->file_offset + row * 64 + 3));
    file.put('\xff');
  }
  const auto opened = Checkpoint::Open(float8_->directory());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto held = HeldBytes(**opened, Quantization::kNone);
  EXPECT_EQ(held.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(held.status().message()), HasSubstr(name + "\", row 5"));
}

}  // namespace
}  // namespace lockstep::testing
