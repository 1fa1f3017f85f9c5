// HeldShards is what ranks hold on GPUs once they have loaded, to the byte.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/llama/llama_stage.h"
#include "nlohmann/json.hpp"
#include "parallel/communicator.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/model/llama/float8_model.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/support/read_file.h"

namespace lockstep::testing {
namespace {

struct GridShape {
  int tp;
  int pp;
};
constexpr GridShape kGrids[] = {{1, 1}, {2, 1}, {1, 3}, {2, 2}, {8, 1}};

std::unique_ptr<Backend> BackendIn(DType compute) {
  auto backend = cuda::CudaBackend::Create({.compute = compute});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

// LoadStats::weight_bytes of every rank.
std::vector<int64_t> LoadedBytes(const Checkpoint& checkpoint, GridShape shape,
                                 const HeldWeights& held, Backend& backend) {
  const ProcessGrid grid = *ProcessGrid::Create(shape.tp, shape.pp);
  StageOptions options;
  options.weights = held.dtype == DType::kF32   ? WeightDType::kF32
                    : held.dtype == DType::kF16 ? WeightDType::kF16
                                                : WeightDType::kBF16;
  options.quantize = held.quantization;
  options.limits = {.max_batched_tokens = 8, .max_num_seqs = 2, .max_model_len = 16};
  std::vector<RankGroups> groups = MakeInProcessGroups(grid);
  std::vector<int64_t> bytes;
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    const auto stage = LlamaStage::Load(checkpoint, grid, rank, backend,
                                        groups[static_cast<size_t>(rank)], options, nullptr);
    EXPECT_TRUE(stage.ok()) << stage.status();
    bytes.push_back(stage.ok() ? (*stage)->load_stats().weight_bytes : -1);
  }
  return bytes;
}

std::vector<int64_t> ExpectedBytes(const ModelConfig& config, GridShape shape,
                                   const HeldWeights& held) {
  const auto shards = HeldShards(config, shape.tp, shape.pp, held);
  EXPECT_TRUE(shards.ok()) << shards.status();
  std::vector<int64_t> bytes;
  for (const RankShard& shard : *shards) bytes.push_back(shard.weight_bytes);
  return bytes;
}

// What config.json alone says, as planners read it.
ModelConfig ConfigAlone(const Checkpoint& checkpoint) {
  const auto config = ParseModelConfig(ReadFile(checkpoint.directory() / "config.json"));
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

void ExpectLoadedIsExpected(const Checkpoint& checkpoint, const HeldWeights& held) {
  const std::unique_ptr<Backend> backend = BackendIn(held.dtype);
  for (const GridShape& shape : kGrids) {
    SCOPED_TRACE(::testing::Message()
                 << "tp " << shape.tp << " x pp " << shape.pp << ", " << DTypeName(held.dtype)
                 << ", " << QuantizationName(held.quantization));
    const std::vector<int64_t> loaded = LoadedBytes(checkpoint, shape, held, *backend);
    EXPECT_EQ(ExpectedBytes(checkpoint.config(), shape, held), loaded);
    EXPECT_EQ(ExpectedBytes(ConfigAlone(checkpoint), shape, held), loaded);
  }
}

// Shares of up to 8 ranks come in multiples of 16.
ModelConfig FourLayers() {
  ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  config.num_layers = 4;
  config.head_dim = 16;
  config.intermediate_size = 256;
  return config;
}

TEST(CudaHeldBytesTest, OfNumbers) {
  for (const bool tied : {false, true}) {
    ModelConfig config = FourLayers();
    config.tie_word_embeddings = tied;
    const TemporaryModel model(config, DType::kBF16);
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      ExpectLoadedIsExpected(model.checkpoint(), {dtype});
    }
  }
}

// Biases and norms of heads, also where ranks share KV heads.
TEST(CudaHeldBytesTest, OfOtherFamilies) {
  for (const ModelFamily family :
       {ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kQwen3}) {
    ModelConfig config = FourLayers();
    config.family = family;
    const TemporaryModel model(config, DType::kBF16);
    ExpectLoadedIsExpected(model.checkpoint(), {DType::kBF16});
  }
}

TEST(CudaHeldBytesTest, OfFloat8CheckpointsByWhatTheySpare) {
  SKIP_WITHOUT_FP8();
  ModelConfig config = FourLayers();
  config.intermediate_size = 192;  // of which an eighth becomes numbers
  const std::vector<std::vector<std::string>> spared_modules = {
      {},
      SparedByMeta(config),
      {"model.layers.1.mlp.down_proj", "model.layers.2.self_attn.o_proj"},
      // Beside these, fused ones become numbers, too.
      {"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.gate_proj"},
      MatrixNames(config)};
  for (const std::vector<std::string>& spared : spared_modules) {
    for (const auto& quantization_config : {FbgemmFp8(spared), FloatQuantized(spared)}) {
      SCOPED_TRACE(quantization_config.dump());
      const Float8Model model(config, DType::kBF16, spared, quantization_config);
      ExpectLoadedIsExpected(model.checkpoint(), {.dtype = DType::kBF16, .keeps_float8 = true});
    }
  }
}

TEST(CudaHeldBytesTest, OfFloat8CheckpointsWhoseOtherMatricesAreQuantized) {
  SKIP_WITHOUT_FP8();
  const ModelConfig config = FourLayers();
  const Float8Model model(config, DType::kBF16, SparedByMeta(config),
                          FbgemmFp8(SparedByMeta(config)));
  const HeldWeights held{DType::kBF16, Quantization::kFp8, /*keeps_float8=*/true};
  ExpectLoadedIsExpected(model.checkpoint(), held);
  ExpectLoadedIsExpected(model.plain(), held);
}

// Modules may be named by a part of what they are called, or what they lie in.
TEST(CudaHeldBytesTest, ListsMayNameModulesAround) {
  SKIP_WITHOUT_FP8();
  const ModelConfig config = FourLayers();
  std::vector<std::string> spared;
  for (const std::string& name : MatrixNames(config)) {
    const bool is_spared = name.find("self_attn") != std::string::npos ||
                           name.find("layers.3.") != std::string::npos || name.ends_with("up_proj");
    if (is_spared) spared.push_back(name);
  }
  const Float8Model model(config, DType::kBF16, spared,
                          FbgemmFp8({"self_attn", "model.layers.3", "up_proj", "lm_head"}));
  ExpectLoadedIsExpected(model.checkpoint(), {.dtype = DType::kBF16, .keeps_float8 = true});
}

// Where files are open, they tell, whatever config.json lists.
TEST(CudaHeldBytesTest, FilesTellWhatIsSpared) {
  SKIP_WITHOUT_FP8();
  const ModelConfig config = FourLayers();
  const HeldWeights held{.dtype = DType::kBF16, .keeps_float8 = true};
  const GridShape whole = {1, 1};
  const Float8Model quiet(config, DType::kBF16, SparedByMeta(config), FbgemmFp8({"lm_head"}));
  const Float8Model told(config, DType::kBF16, SparedByMeta(config),
                         FbgemmFp8(SparedByMeta(config)));
  const Float8Model loud(config, DType::kBF16, {}, FbgemmFp8(SparedByMeta(config)));
  const std::unique_ptr<Backend> backend = BackendIn(held.dtype);
  for (const Float8Model* model : {&quiet, &told, &loud}) {
    EXPECT_EQ(ExpectedBytes(model->checkpoint().config(), whole, held),
              LoadedBytes(model->checkpoint(), whole, held, *backend));
  }
  EXPECT_EQ(ExpectedBytes(quiet.checkpoint().config(), whole, held),
            ExpectedBytes(told.checkpoint().config(), whole, held));
  EXPECT_LT(ExpectedBytes(loud.checkpoint().config(), whole, held),
            ExpectedBytes(told.checkpoint().config(), whole, held));
}

}  // namespace
}  // namespace lockstep::testing
