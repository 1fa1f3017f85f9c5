// A checkpoint that `lockstep model quantize` wrote gives the bits of its source with --quantize
// where K-slices are whole groups, and else its own, under every layout.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/llama_tensors.h"
#include "model/checkpoint/model_quantizer.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/checkpoint/stored_matrix.h"
#include "nlohmann/json.hpp"
#include "tests/model/llama/float8_model.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/support/read_file.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class QuantizedCheckpointTest : public ::testing::TestWithParam<std::tuple<DType, Quantization>> {
 protected:
  std::unique_ptr<Checkpoint> Quantize(const std::filesystem::path& input,
                                       int64_t max_shard_bytes) {
    const std::filesystem::path output = input / "quantized";
    std::filesystem::remove_all(output);
    const auto written = QuantizeModel({.input = input,
                                        .output = output,
                                        .quantization = std::get<1>(GetParam()),
                                        .max_shard_bytes = max_shard_bytes,
                                        .num_threads = 2,
                                        .progress = {}});
    EXPECT_TRUE(written.ok()) << written.status();
    EXPECT_LT(written->output_bytes, written->input_bytes);
    auto opened = Checkpoint::Open(output);
    EXPECT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(written->loading_text, (*opened)->config().LoadingText(Quantization::kNone, 1));
    EXPECT_TRUE(CheckLlamaTensors(**opened).ok()) << CheckLlamaTensors(**opened);
    EXPECT_TRUE(UnknownTensors(**opened).empty());
    return *std::move(opened);
  }

  std::vector<Outcome> Run(const Checkpoint& checkpoint, Quantization quantize, int tp, int pp) {
    DriveOptions options;
    options.make_backend = CpuBackends(1);
    options.stage.quantize = quantize;
    options.stage.limits = {.max_batched_tokens = 64, .max_num_seqs = 8, .max_model_len = 100};
    options.tp = tp;
    options.pp = pp;
    auto outcomes = Drive(checkpoint, options, {{{1, 5, 9, 300, 7}, 4}, {{2}, 6}});
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return outcomes.ok() ? *std::move(outcomes) : std::vector<Outcome>{};
  }
};

TEST_P(QuantizedCheckpointTest, GivesTheBitsOfQuantizingWhileLoading) {
  const auto [dtype, quantization] = GetParam();
  for (const bool tied : {false, true}) {
    ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
    config.head_dim = 64;
    config.intermediate_size = 8 * 64;
    config.tie_word_embeddings = tied;
    const TemporaryModel model(config, dtype);
    const std::vector<Outcome> want = Run(model.checkpoint(), quantization, 1, 1);
    for (const int64_t max_shard_bytes : {int64_t{1} << 40, int64_t{30000}}) {
      const auto quantized = Quantize(model.directory(), max_shard_bytes);
      EXPECT_EQ(quantized->files().size() > 1, max_shard_bytes == 30000);
      for (const auto& [tp, pp] : {std::pair(1, 1), {2, 2}, {4, 1}, {8, 3}}) {
        EXPECT_TRUE(SameBits(Run(*quantized, Quantization::kNone, tp, pp), want))
            << "tp " << tp << " pp " << pp;
      }
      EXPECT_TRUE(SameBits(Run(*quantized, quantization, 1, 1), want));
    }
  }
}

// K-slices of 22 columns (down) and 8 (output) end within groups, which are counted from a row's
// first column, as in all of compressed-tensors.
TEST_P(QuantizedCheckpointTest, MatricesCutWithinGroupsAreReadAsNumbers) {
  const auto [dtype, quantization] = GetParam();
  const TemporaryModel model(SmallConfig(/*num_kv_heads=*/4), dtype);
  const auto quantized = Quantize(model.directory(), int64_t{1} << 40);
  const std::vector<int64_t> scales = {64, 176 / QuantizedGroup(quantization) + 1};
  EXPECT_EQ((*quantized->Find("model.layers.0.mlp.down_proj.weight_scale"))->shape, scales);
  const std::vector<Outcome> alone = Run(*quantized, Quantization::kNone, 1, 1);
  for (const auto& [tp, pp] : {std::pair(2, 2), {4, 1}, {8, 3}}) {
    EXPECT_TRUE(SameBits(Run(*quantized, Quantization::kNone, tp, pp), alone))
        << "tp " << tp << " pp " << pp;
  }
  const std::vector<Outcome> source = Run(model.checkpoint(), Quantization::kNone, 1, 1);
  const double error = Distance(Run(model.checkpoint(), quantization, 1, 1), source);
  EXPECT_GT(error, 0);
  EXPECT_LT(Distance(alone, source), 1.5 * error);
  EXPECT_LT(Distance(Run(*quantized, quantization, 1, 1), source), 1.5 * error);
}

// Thirds of columns are cut elsewhere than halves and eighths: these are other sums of the same.
TEST_P(QuantizedCheckpointTest, EveryTensorParallelSizeReadsIt) {
  const auto [dtype, quantization] = GetParam();
  ModelConfig config = SmallConfig(/*num_kv_heads=*/6);
  config.num_heads = 6;
  config.intermediate_size = 3 * 64;
  const TemporaryModel model(config, dtype);
  const auto quantized = Quantize(model.directory(), int64_t{1} << 40);
  const std::vector<Outcome> alone = Run(*quantized, Quantization::kNone, 1, 1);
  const std::vector<Outcome> source = Run(model.checkpoint(), Quantization::kNone, 1, 1);
  const double error = Distance(alone, source);
  for (const int tp : {3, 6}) {
    EXPECT_LT(Distance(Run(*quantized, Quantization::kNone, tp, 1), source), 1.5 * error) << tp;
  }
}

StoredTensor AsItLies(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo& tensor = **checkpoint.Find(name);
  const int64_t rows = tensor.shape.size() < 2 ? 1 : tensor.shape[0];
  StoredTensor stored = {tensor.dtype_name, tensor.shape, {}};
  stored.bytes.resize(static_cast<size_t>(tensor.num_bytes));
  const absl::Status read =
      checkpoint.ReadBytes(tensor, 0, rows, 0, tensor.num_bytes / rows, stored.bytes.data());
  EXPECT_TRUE(read.ok()) << read;
  return stored;
}

// A quantized matrix as numbers, of bf16 models as far as bf16 holds them.
StoredTensor Unpacked(const Checkpoint& checkpoint, const std::string& name, int64_t rows,
                      int64_t columns) {
  const auto matrix =
      OpenMatrix(checkpoint, {.name = name, .rows = rows, .columns = columns, .as_numbers = true});
  Staging staging;
  const auto read = matrix->sources[0]->Read({0, rows}, {0, columns}, staging);
  const auto* from = static_cast<const char*>(read->data);
  const size_t count = static_cast<size_t>(rows * columns);
  StoredTensor stored = {"F32", {rows, columns}, std::string(from, count * sizeof(float))};
  if (checkpoint.config().dtype != DType::kBF16) return stored;
  std::vector<uint16_t> halves(count);
  for (size_t i = 0; i < count; ++i) {
    halves[i] = ToBF16(static_cast<const float*>(read->data)[i]).bits;
  }
  stored.dtype = "BF16";
  stored.bytes.assign(reinterpret_cast<const char*>(halves.data()), count * sizeof(uint16_t));
  return stored;
}

// k is spared where q and v are not, and up where gate is not: nothing that the checkpoint has as
// numbers is quantized unasked.
TEST_P(QuantizedCheckpointTest, WhatIsMultipliedWithSparedMatricesBecomesNumbers) {
  const auto [dtype, quantization] = GetParam();
  ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  config.head_dim = 64;
  config.intermediate_size = 8 * 64;
  const TemporaryModel model(config, dtype);
  const auto quantized = Quantize(model.directory(), int64_t{1} << 40);
  const std::string attention = "model.layers.0.self_attn.";
  const std::string mlp = "model.layers.1.mlp.";
  StoredTensors some, unpacked;
  for (const std::string& name : {attention + "k_proj.weight", mlp + "up_proj.weight"}) {
    some.emplace_back(name, AsItLies(model.checkpoint(), name));
  }
  unpacked = some;
  for (const auto& [name, rows] : {std::pair(attention + "q_proj", 512),
                                   {attention + "v_proj", 256},
                                   {mlp + "gate_proj", 512}}) {
    unpacked.emplace_back(name + ".weight", Unpacked(*quantized, name, rows, 64));
  }
  const auto has = [](const StoredTensors& tensors, const std::string& name) {
    const std::string matrix = name.substr(0, name.rfind('.')) + ".weight";
    return std::ranges::any_of(tensors, [&](const auto& each) { return each.first == matrix; });
  };
  const StoredTensors spared = some;
  const StoredTensors replaced = unpacked;
  for (const std::string& name : quantized->tensor_names()) {
    if (!has(spared, name)) some.emplace_back(name, AsItLies(*quantized, name));
    if (!has(replaced, name)) unpacked.emplace_back(name, AsItLies(*quantized, name));
  }
  const auto json = nlohmann::json::parse(ReadFile(quantized->directory() / "config.json"));
  const auto mixed = WriteCheckpoint(model.directory() / "mixed", json, some);
  const auto twin = WriteCheckpoint(model.directory() / "twin", json, unpacked);
  for (const auto& [tp, pp] : {std::pair(1, 1), {2, 2}}) {
    EXPECT_TRUE(SameBits(Run(*mixed, Quantization::kNone, tp, pp),
                         Run(*twin, Quantization::kNone, tp, pp)));
    const auto bytes = [&](const Checkpoint& checkpoint, Quantization quantize) {
      return (*HeldShards(checkpoint.config(), tp, pp, {config.dtype, quantize}))[0].weight_bytes;
    };
    EXPECT_EQ(bytes(*mixed, Quantization::kNone), bytes(*twin, Quantization::kNone));
    EXPECT_EQ(bytes(*mixed, quantization), bytes(*quantized, Quantization::kNone));
  }
  EXPECT_TRUE(
      SameBits(Run(*mixed, quantization, 1, 1), Run(*quantized, Quantization::kNone, 1, 1)));
}

TEST_P(QuantizedCheckpointTest, WhatCannotBeDoneIsSaid) {
  const TemporaryModel model(SmallConfig(/*num_kv_heads=*/4), std::get<0>(GetParam()));
  const auto quantized = Quantize(model.directory(), int64_t{1} << 40);
  const Quantization other =
      std::get<1>(GetParam()) == Quantization::kInt8 ? Quantization::kInt4 : Quantization::kInt8;
  EXPECT_THAT(std::string(quantized->config().HeldAs(other).status().message()),
              HasSubstr("quantized to"));
  QuantizeOptions options;
  options.input = quantized->directory();
  options.output = model.directory() / "again";
  EXPECT_THAT(std::string(QuantizeModel(options).status().message()),
              HasSubstr("is quantized already"));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  options.input = model.directory();
  options.output = quantized->directory();
  EXPECT_EQ(QuantizeModel(options).status().code(), absl::StatusCode::kAlreadyExists);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, QuantizedCheckpointTest,
    ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                       ::testing::Values(Quantization::kInt8, Quantization::kInt4)));

}  // namespace
}  // namespace lockstep::testing
