// Cached prefixes that come back from the host's memory: the engine's plans by a real stage, on
// CPUs and on the emulation of CUDA, whose copies to the host run beside steps.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/worker/thread_replica.h"

namespace lockstep::testing {
namespace {

// Of which a cache holds two sequences or three.
constexpr Scenario kCrowded = {.num_blocks = 24, .num_host_blocks = 100};
constexpr int64_t kPlenty = 1000;  // blocks

enum class Hardware { kCpu, kGpu, kGpuThatKeepsSteps };

template <Hardware hardware>
class ModelStage {
 public:
  explicit ModelStage(RankGroups& groups) : backend_(MakeBackend()) {
    static const TemporaryModel model(Config(), DType::kF32);
    StageOptions options;
    options.limits = LimitsOf(kCrowded);
    auto loaded = LlamaStage::Load(model.checkpoint(), *ProcessGrid::Create(1, 1), 0, *backend_,
                                   groups, options, nullptr);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    stage_ = *std::move(loaded);
    EXPECT_TRUE(stage_->AllocateKvCache(kPlenty).ok());
    EXPECT_TRUE(stage_->AllocateHostBlocks(kCrowded.num_host_blocks, nullptr).ok());
    EXPECT_TRUE(stage_->WarmUp().ok());
  }
  StageCalls Calls() {
    return {.forward = [this](const StepBatch& batch) { return stage_->Forward(batch); },
            .copy_blocks = [this](const StepBlocks& blocks) { return stage_->CopyBlocks(blocks); },
            .logits = [this](int64_t first, int64_t count) { return stage_->Logits(first, count); },
            .max_logits_rows = LlamaStage::kMaxLogitsRows};
  }

 private:
  static ModelConfig Config() {
    ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
    config.num_layers = 2;
    config.vocab_size = kFakeVocab;
    return config;
  }
  static std::unique_ptr<Backend> MakeBackend() {
    if (hardware == Hardware::kCpu) return CpuBackends(1)();
    return cuda::CudaBackend::Create({.compute = DType::kF32,
                                      .deterministic = true,
                                      .keep_steps = hardware == Hardware::kGpuThatKeepsSteps})
        .value();
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<LlamaStage> stage_;
};

// Every prompt twice, the second time after all others.
std::vector<engine::EngineRequest> Repeated() {
  std::vector<engine::EngineRequest> requests = RandomRequests(/*seed=*/8, /*count=*/14);
  for (engine::EngineRequest again : std::vector(requests)) {
    again.request_id += requests.size();
    requests.push_back(std::move(again));
  }
  return requests;
}

template <typename Stage>
class OffloadedBlocksTest : public ::testing::Test {};
using Stages = ::testing::Types<ModelStage<Hardware::kCpu>, ModelStage<Hardware::kGpu>,
                                ModelStage<Hardware::kGpuThatKeepsSteps>>;
TYPED_TEST_SUITE(OffloadedBlocksTest, Stages);

TYPED_TEST(OffloadedBlocksTest, ChangeNoToken) {
  const Outputs want = Serve<TypeParam>({.num_blocks = kPlenty}, Repeated());
  ServeStats stats;
  EXPECT_EQ(Serve<TypeParam>(kCrowded, Repeated(), &stats), want);
  EXPECT_GT(stats.num_blocks_restored, 30u);
  EXPECT_GT(stats.num_preemptions, 0u);
}

}  // namespace
}  // namespace lockstep::testing
