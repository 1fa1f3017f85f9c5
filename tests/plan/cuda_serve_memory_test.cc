// What is planned for ranks of `serve` on GPUs is what they take there: buffers to the byte, and
// the weights of what the launch command loads.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "deploy/plan/planner.h"
#include "deploy/plan/report.h"
#include "deploy/plan/serve_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "model/sampling/device_choice.h"
#include "model/sampling/token_return.h"
#include "nlohmann/json.hpp"
#include "tests/model/llama/float8_model.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/parallel/run_ranks.h"
#include "tests/plan/requests.h"
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/temp_directory.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

ModelConfig SmallLlama() {
  ModelConfig config = testing::SmallConfig(/*num_kv_heads=*/4);
  config.head_dim = 16;
  config.intermediate_size = 256;
  return config;
}

Model ModelIn(const Checkpoint& checkpoint) {
  auto model = LoadModel(checkpoint.directory().string());
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// What RankModel takes once it has loaded, beside weights.
struct Rank {
  std::unique_ptr<cuda::CudaBackend> backend;
  std::unique_ptr<LlamaStage> stage;
  std::unique_ptr<DeviceChooser> chooser;
  std::unique_ptr<TokenReturn> token_return;
  int64_t bytes = 0;
};
absl::StatusOr<Rank> LoadRank(const Checkpoint& checkpoint, const ProcessGrid& grid, int rank,
                              RankGroups& groups, const StageOptions& options) {
  const BatchLimits& limits = options.limits;
  Rank made;
  ASSIGN_OR_RETURN(made.backend, cuda::CudaBackend::Create({.compute = DType::kBF16}));
  const int64_t before = made.backend->Memory().held_bytes;
  ASSIGN_OR_RETURN(made.stage, LlamaStage::Load(checkpoint, grid, rank, *made.backend, groups,
                                                options, nullptr));
  const int64_t seqs = limits.max_num_seqs;
  if (made.stage->is_last()) {
    ASSIGN_OR_RETURN(made.chooser, DeviceChooser::Create(
                                       *made.backend, checkpoint.config().vocab_size, *groups.tp,
                                       DeviceChooser::MaxRows(limits.max_batched_tokens, seqs)));
  }
  if (made.stage->is_first() != made.stage->is_last()) {
    ASSIGN_OR_RETURN(made.token_return, TokenReturn::Create(*made.backend, *groups.pp, seqs));
  }
  made.bytes = made.backend->Memory().held_bytes - before - made.stage->load_stats().weight_bytes;
  return made;
}

// Attention's lists, which planners count as none; aligned as DeviceBatch does.
int64_t ListBytes(Rank& rank, const BatchLimits& limits) {
  const StageShape& shape = rank.stage->shape();
  KvCacheView cache;
  cache.dtype = DType::kBF16;
  cache.num_kv_heads = static_cast<int>(shape.kv_heads.size());
  cache.block_size = limits.block_size;
  cache.head_dim = static_cast<int>(shape.head_dim);
  const int64_t bytes =
      rank.backend->ReserveAttentionWork({std::max(limits.max_batched_tokens, limits.max_num_seqs),
                                          limits.max_num_seqs + 1, limits.max_model_len},
                                         static_cast<int>(shape.query_heads.size()), cache);
  return (bytes + 63) / 64 * 64;
}

// Of a model that is loaded so, planned as in that format.
void ExpectBuffersAsPlanned(const Checkpoint& checkpoint, Quantization quantize,
                            const char* format) {
  const Model planned = ModelIn(checkpoint);
  const WeightFormat weights = *FindWeightFormat(format);
  const KvFormat kv = *FindKvFormat("bf16");
  StageOptions loaded;
  loaded.quantize = quantize;
  for (const BatchLimits& limits :
       {BatchLimits{.max_batched_tokens = 8, .max_num_seqs = 3, .max_model_len = 50},
        BatchLimits{.max_batched_tokens = 700, .max_num_seqs = 12, .max_model_len = 500}}) {
    loaded.limits = limits;
    MemoryOptions options;
    options.max_batched_tokens = limits.max_batched_tokens;
    options.max_num_seqs = limits.max_num_seqs;
    options.max_model_len = limits.max_model_len;
    for (const Layout& layout : {Layout{.tp = 1, .pp = 1}, Layout{.tp = 2, .pp = 1},
                                 Layout{.tp = 1, .pp = 3}, Layout{.tp = 8, .pp = 2}}) {
      testing::RunRanks(layout.tp, layout.pp, [&](int rank, RankGroups& groups) -> absl::Status {
        if (rank % layout.tp != 0) return absl::OkStatus();
        const ProcessGrid grid = *ProcessGrid::Create(layout.tp, layout.pp);
        ASSIGN_OR_RETURN(Rank taken, LoadRank(checkpoint, grid, rank, groups, loaded));
        const ServeMemory memory = MemoryOfServe({planned.architecture, weights, kv, {}, options},
                                                 layout, rank / layout.tp);
        EXPECT_EQ(memory.buffers + ListBytes(taken, limits), taken.bytes)
            << format << ", rank " << rank << " of " << layout.ranks();
        return absl::OkStatus();
      });
    }
  }
}

TEST(CudaServeMemory, BuffersAreThoseThatRanksTake) {
  const testing::TemporaryModel model(SmallLlama(), DType::kBF16);
  ExpectBuffersAsPlanned(model.checkpoint(), Quantization::kNone, "bf16");
  ExpectBuffersAsPlanned(model.checkpoint(), Quantization::kFp8, "fp8");
}

TEST(CudaServeMemory, ThoseOfAttentionInBf16Too) {
  const ModelConfig config = SmallLlama();
  std::vector<std::string> attention = testing::MatrixNames(config);
  std::erase_if(attention,
                [](const std::string& name) { return !absl::StrContains(name, "attn"); });
  const testing::Float8Model model(config, DType::kBF16, attention, testing::FbgemmFp8(attention));
  ExpectBuffersAsPlanned(model.checkpoint(), Quantization::kNone, "fp8-mlp");
}

// As ranks of the command that is planned, which are two, would load.
struct Launch {
  std::string command;
  std::string not_served;
  int64_t planned_bytes = 0;
  PlanRequest request;
};
Launch PlanLaunch(const Checkpoint& checkpoint, const char* gpu, const char* weights) {
  Launch launch;
  PlanRequest& request = launch.request = RequestFor("llama-3.1-8b", gpu, weights);
  request.model = ModelIn(checkpoint);
  if (request.weights.name == "f32") request.kv = *FindKvFormat("f32");
  request.input_tokens = 100;
  request.output_tokens = 100;
  request.concurrency = 1;
  request.tp = 2;
  request.pp = 1;
  const auto plan = MakePlan(request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  launch.command = LaunchCommand(*plan);
  launch.not_served = plan->not_served;
  launch.planned_bytes = plan->answer()->memory.stages[0].weights.total();
  return launch;
}

std::string FlagOf(const std::string& command, const char* flag) {
  const std::vector<std::string> words = absl::StrSplit(command, ' ');
  const auto found = std::find(words.begin(), words.end(), flag);
  return found == words.end() ? "" : *(found + 1);
}

// What the fullest of its ranks holds; INVALID_ARGUMENT as of loading.
absl::StatusOr<int64_t> LoadedBytes(const Checkpoint& checkpoint, const std::string& dtype,
                                    const std::string& quantize) {
  StageOptions options;
  options.weights = WeightDTypeOf(dtype.empty() ? "auto" : dtype).value();
  options.quantize = QuantizationOf(quantize.empty() ? "none" : quantize).value();
  options.limits = {.max_batched_tokens = 8, .max_num_seqs = 2, .max_model_len = 16};
  const ProcessGrid grid = *ProcessGrid::Create(2, 1);
  std::vector<RankGroups> groups = MakeInProcessGroups(grid);
  ASSIGN_OR_RETURN(const DType compute,
                   AttentionDType(checkpoint, options.weights, /*holds_f16=*/true));
  ASSIGN_OR_RETURN(const auto backend, cuda::CudaBackend::Create({.compute = compute}));
  ASSIGN_OR_RETURN(const auto stage,
                   LlamaStage::Load(checkpoint, grid, 0, *backend, groups[0], options, nullptr));
  return stage->load_stats().weight_bytes;
}

// Both kinds of GPU, and what is loaded on them.
class CudaLaunchTest : public ::testing::Test {
 protected:
  ~CudaLaunchTest() override { cuda_emulation::SetDevice({}); }
  void UseGpu(bool multiplies_fp8) {
    gpu_ = multiplies_fp8 ? "h100" : "a100";
    cuda_emulation::SetDevice({.compute_major = multiplies_fp8 ? 9 : 8, .compute_minor = 0});
  }
  void ExpectServed(const Checkpoint& checkpoint, const char* weights, const std::string& flags) {
    SCOPED_TRACE(::testing::Message() << weights << " on " << gpu_);
    const Launch launch = PlanLaunch(checkpoint, gpu_, weights);
    EXPECT_EQ(launch.not_served, "");
    EXPECT_THAT(launch.command,
                HasSubstr(absl::StrCat("--tp 2 --pp 1 ", flags, "--max-model-len")));
    EXPECT_FALSE(absl::StrContains(launch.command, "--num-kv-blocks"));
    const auto loaded = LoadedBytes(checkpoint, FlagOf(launch.command, "--dtype"),
                                    FlagOf(launch.command, "--quantize"));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(launch.planned_bytes, *loaded);
  }
  void ExpectRefused(const Checkpoint& checkpoint, const char* weights, const char* why) {
    SCOPED_TRACE(::testing::Message() << weights << " on " << gpu_);
    const Launch launch = PlanLaunch(checkpoint, gpu_, weights);
    EXPECT_EQ(launch.command, "");
    EXPECT_THAT(launch.not_served, HasSubstr(why));
  }
  const char* gpu_ = "";
};

TEST_F(CudaLaunchTest, OfNumbers) {
  for (const bool multiplies_fp8 : {true, false}) {
    UseGpu(multiplies_fp8);
    for (const DType stored : {DType::kBF16, DType::kF16, DType::kF32}) {
      const testing::TemporaryModel model(SmallLlama(), stored);
      ExpectServed(model.checkpoint(), "f32", "--dtype f32 ");
      ExpectServed(model.checkpoint(), "bf16",
                   stored == DType::kF16 ? "--dtype f16 " : "--dtype bf16 ");
      if (multiplies_fp8) {
        ExpectServed(model.checkpoint(), "fp8",
                     stored == DType::kF32 ? "--dtype bf16 --quantize fp8 " : "--quantize fp8 ");
      } else {
        ExpectRefused(model.checkpoint(), "fp8", "8.9 or later");
        EXPECT_FALSE(LoadedBytes(model.checkpoint(), "", "fp8").ok());
      }
      ExpectRefused(model.checkpoint(), "fp8-mlp", "takes fp8-mlp from checkpoints");
      ExpectRefused(model.checkpoint(), "int8", "does not hold weights in int8");
      EXPECT_FALSE(LoadedBytes(model.checkpoint(), "", "int8").ok());
    }
  }
}

// Meta's, and those of llm-compressor: bit for bit, by no flag.
TEST_F(CudaLaunchTest, OfFloat8Checkpoints) {
  const ModelConfig config = SmallLlama();
  const std::vector<std::string> spared = testing::SparedByMeta(config);
  for (const DType declared : {DType::kBF16, DType::kF16, DType::kF32}) {
    const std::string dtype = declared == DType::kF32 ? "--dtype bf16 " : "";
    const testing::Float8Model meta(config, declared, spared, testing::FbgemmFp8(spared));
    const testing::Float8Model whole(config, declared, {}, testing::FloatQuantized({"lm_head"}));
    UseGpu(/*multiplies_fp8=*/true);
    ExpectServed(meta.checkpoint(), "fp8-mlp", dtype);
    ExpectServed(meta.checkpoint(), "fp8", dtype + "--quantize fp8 ");
    ExpectServed(whole.checkpoint(), "fp8", dtype);
    for (const Checkpoint* checkpoint : {&meta.checkpoint(), &whole.checkpoint()}) {
      ExpectRefused(*checkpoint, "bf16", "as it is stored");
      ExpectRefused(*checkpoint, "f32", "as it is stored");
      EXPECT_EQ(*LoadedBytes(*checkpoint, "bf16", ""),
                *LoadedBytes(*checkpoint, declared == DType::kF32 ? "bf16" : "auto", ""));
    }
    UseGpu(/*multiplies_fp8=*/false);
    ExpectRefused(meta.checkpoint(), "fp8-mlp", "there they become numbers (--weights bf16)");
    ExpectRefused(whole.checkpoint(), "fp8", "there they become numbers (--weights bf16)");
    for (const Checkpoint* checkpoint : {&meta.checkpoint(), &whole.checkpoint()}) {
      ExpectServed(*checkpoint, "bf16", declared == DType::kF16 ? "--dtype f16 " : "--dtype bf16 ");
      ExpectServed(*checkpoint, "f32", "--dtype f32 ");
    }
  }
}

// In groups of 128 that are not ours.
std::unique_ptr<Checkpoint> WritePackedCheckpoint(const testing::TempDirectory& directory,
                                                  int64_t group_size) {
  ModelConfig config = SmallLlama();
  config.hidden_size = 128;
  config.dtype = DType::kBF16;
  auto json = nlohmann::json::parse(ModelConfigJson(config));
  json["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                 {"format", "pack-quantized"},
                                 {"config_groups",
                                  {{"group_0",
                                    {{"weights",
                                      {{"num_bits", 8},
                                       {"type", "int"},
                                       {"symmetric", true},
                                       {"strategy", "group"},
                                       {"group_size", group_size}}}}}}}};
  const auto zeros = [](const char* dtype, std::vector<int64_t> shape, int64_t element_bytes) {
    int64_t bytes = element_bytes;
    for (const int64_t extent : shape) bytes *= extent;
    return testing::StoredTensor{dtype, shape, std::string(static_cast<size_t>(bytes), '\0')};
  };
  testing::StoredTensors tensors;
  for (const auto& tensor : testing::TemporaryModel::TensorsOf(config)) {
    const bool is_matrix = absl::StrContains(tensor.name, "_proj");
    if (!is_matrix) {
      tensors.emplace_back(tensor.name, zeros("BF16", tensor.shape, 2));
      continue;
    }
    const std::vector<int64_t>& shape = tensor.shape;
    tensors.emplace_back(tensor.name + "_packed", zeros("I32", {shape[0], shape[1] / 4}, 4));
    tensors.emplace_back(tensor.name + "_scale",
                         zeros("BF16", {shape[0], shape[1] / group_size}, 2));
  }
  return testing::WriteCheckpoint(directory.path(), json, tensors);
}

TEST_F(CudaLaunchTest, OfIntegers) {
  UseGpu(/*multiplies_fp8=*/true);
  const testing::TempDirectory directory;
  const auto foreign = WritePackedCheckpoint(directory, 128);
  ExpectRefused(*foreign, "int8", "there they become numbers (--weights bf16)");
  ExpectServed(*foreign, "bf16", "--dtype bf16 ");
  ExpectServed(*foreign, "f32", "--dtype f32 ");
  ExpectServed(*foreign, "fp8", "--quantize fp8 ");
  // Ours stay integers, which GPUs do not multiply.
  const testing::TempDirectory other;
  const auto ours = WritePackedCheckpoint(other, 64);
  for (const char* weights : {"int8", "bf16", "fp8"}) {
    ExpectRefused(*ours, weights, "does not hold weights in");
  }
  EXPECT_FALSE(LoadedBytes(*ours, "", "").ok());
  EXPECT_FALSE(LoadedBytes(*ours, "bf16", "").ok());
}

}  // namespace
}  // namespace lockstep::plan
