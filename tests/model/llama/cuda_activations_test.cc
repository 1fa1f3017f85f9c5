// What a stage takes of a GPU's memory beside its weights, and what it says when there is too
// little: on the emulation of CUDA.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kMostTokens = 130;  // more than steps that are kept have

ModelConfig OneLayer() {
  ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  config.num_layers = 1;
  return config;
}

class CudaActivationsTest : public ::testing::TestWithParam<Quantization> {
 protected:
  CudaActivationsTest() : model_(OneLayer(), DType::kBF16) {
    options_.quantize = GetParam();
    options_.limits = {.max_batched_tokens = kMostTokens,
                       .max_num_seqs = 1,
                       .max_model_len = kMostTokens,
                       .block_size = 16};
  }
  ~CudaActivationsTest() override { cuda_emulation::SetDevice({}); }

  // A backend that may fill the device.
  void StartOn(const cuda_emulation::Device& device, bool deterministic = false) {
    backend_.reset();
    cuda_emulation::SetDevice(device);
    auto backend =
        cuda::CudaBackend::Create({.deterministic = deterministic, .memory_fraction = 1.0});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  absl::StatusOr<std::unique_ptr<LlamaStage>> Load() {
    return LlamaStage::Load(model_.checkpoint(), *ProcessGrid::Create(1, 1), 0, *backend_, groups_,
                            options_, nullptr);
  }
  // Of a stage that there is no room for: the tokens that there is.
  int64_t AdvisedTokens() {
    const absl::Status refused = Load().status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    const std::string message(refused.message());
    const std::string advice = "lower max_batched_tokens to ";
    const size_t at = message.find(advice);
    EXPECT_NE(at, std::string::npos) << message;
    return at == std::string::npos ? 1 : std::stol(message.substr(at + advice.size()));
  }

  const TemporaryModel model_;
  StageOptions options_;
  RankGroups groups_{MakeSelfCommunicator(), MakeSelfCommunicator()};
  std::unique_ptr<cuda::CudaBackend> backend_;
};

TEST_P(CudaActivationsTest, ThoseThatDoNotFitSayHowManyTokensWould) {
  StartOn({.memory_bytes = int64_t{256} << 20});
  int64_t& tokens = options_.limits.max_batched_tokens;
  tokens = 1 << 18;
  const int64_t advised = AdvisedTokens();
  EXPECT_GT(advised, 1 << 14);
  tokens = advised + advised / 20;
  EXPECT_TRUE(absl::IsResourceExhausted(Load().status()));
  tokens = advised;
  EXPECT_EQ(Load().status(), absl::OkStatus());
}

TEST_P(CudaActivationsTest, AByteTooFewIsToldAtOnce) {
  StartOn({});
  auto stage = Load();
  ASSERT_TRUE(stage.ok()) << stage.status();
  const int64_t bytes = cuda_emulation::AllocatedBytes();
  stage->reset();
  StartOn({.memory_bytes = bytes});
  EXPECT_EQ(Load().status(), absl::OkStatus());
  StartOn({.memory_bytes = bytes - 1});
  const int64_t advised = AdvisedTokens();
  EXPECT_GT(advised, kMostTokens * 9 / 10);
  EXPECT_LT(advised, kMostTokens);
  options_.limits.max_batched_tokens = advised;
  EXPECT_EQ(Load().status(), absl::OkStatus());
}

// On a GPU that is full when a stage and its cache are there, steps of all sizes run.
TEST_P(CudaActivationsTest, AWarmUpTakesNoMemory) {
  for (const bool deterministic : {false, true}) {
    StartOn({}, deterministic);
    const auto stage = Load();
    ASSERT_TRUE(stage.ok()) << stage.status();
    ASSERT_EQ((*stage)->AllocateKvCache((*stage)->num_warm_up_blocks()), absl::OkStatus());
    const int64_t bytes = cuda_emulation::AllocatedBytes();
    cuda_emulation::SetDevice({.memory_bytes = bytes});
    EXPECT_EQ((*stage)->WarmUp(), absl::OkStatus());
    EXPECT_EQ(cuda_emulation::AllocatedBytes(), bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, CudaActivationsTest,
                         ::testing::Values(Quantization::kNone, Quantization::kFp8),
                         [](const auto& info) {
                           return info.param == Quantization::kFp8 ? "Fp8" : "AsTheyAre";
                         });

}  // namespace
}  // namespace lockstep::testing
