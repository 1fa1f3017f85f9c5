// Several ranks with a GPU each: whole generations over NCCL, both emulated.
#include <atomic>

#include "gtest/gtest.h"
#include "kernels/accelerator.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "parallel/device_communicators.h"
#include "tests/model/llama/golden.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/support/assets.h"
#include "tests/support/cuda_emulation/emulation.h"

extern "C" const lockstep::AcceleratorPlugin* lockstep_plugin();

namespace lockstep::testing {
namespace {

constexpr int64_t kMaxBatchedTokens = 64;
constexpr int64_t kHiddenSize = 64;  // of stories260K

absl::StatusOr<RankGroups> OverNccl(Backend& backend, RankGroups& host) {
  return MakeDeviceGroups(lockstep_plugin()->accelerator->communicators(), backend, host,
                          {.max_hidden_states = kMaxBatchedTokens * kHiddenSize,
                           .notice = [](const std::string& text) { ADD_FAILURE() << text; }});
}

class CudaGroupsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path directory = SharedAssets() / "models" / "stories260K";
    SKIP_WITHOUT_ASSET(directory);
    auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    for (GoldenCase& golden : ReadGolden(directory)) {
      if (golden.prompt.size() > 40) continue;  // the emulation is no GPU
      golden.greedy_tokens.resize(std::min<size_t>(golden.greedy_tokens.size(), 8));
      requests_.push_back({golden.prompt, static_cast<int>(golden.greedy_tokens.size())});
      cases_.push_back(std::move(golden));
    }
    ASSERT_FALSE(cases_.empty());
  }
  void TearDown() override { EXPECT_EQ(cuda_emulation::TakeFailure(), ""); }

  std::vector<Outcome> Run(int tp, int pp, DType compute, bool deterministic,
                           bool stages_lie_apart = false) {
    cuda_emulation::SetDevice({.num_devices = tp * pp});
    std::atomic<int> next_device{0};
    DriveOptions options;
    options.tp = tp;
    options.pp = pp;
    options.make_backend = [&]() -> std::unique_ptr<Backend> {
      auto backend = cuda::CudaBackend::Create(
          {.device = next_device++, .compute = compute, .deterministic = deterministic});
      EXPECT_TRUE(backend.ok()) << backend.status();
      return *std::move(backend);
    };
    options.make_device_groups = &OverNccl;
    options.stages_lie_apart = stages_lie_apart;
    options.stage.weights =
        compute == DType::kBF16 ? StageOptions::Weights::kBF16 : StageOptions::Weights::kF32;
    options.stage.limits = {
        .max_batched_tokens = kMaxBatchedTokens, .max_num_seqs = 4, .max_model_len = 80};
    options.chunk = 30;
    auto outcomes = Drive(*checkpoint_, options, requests_);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return *std::move(outcomes);
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<GoldenCase> cases_;
  std::vector<Request> requests_;
};

TEST_F(CudaGroupsTest, EveryLayoutComputesTheGoldenNumbers) {
  for (const auto& [tp, pp] :
       {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2), std::pair(4, 1)}) {
    for (const bool deterministic : {false, true}) {
      const std::vector<Outcome> outcomes = Run(tp, pp, DType::kF32, deterministic);
      for (size_t i = 0; i < cases_.size(); ++i) ExpectGolden(outcomes[i], cases_[i]);
    }
  }
}

TEST_F(CudaGroupsTest, DeterministicRunsAreTheSameToTheBit) {
  const std::vector<Outcome> want = Run(2, 1, DType::kBF16, true);
  EXPECT_TRUE(SameBits(Run(2, 1, DType::kBF16, true), want));
  EXPECT_TRUE(SameBits(Run(2, 2, DType::kBF16, true), want)) << "stages do not change a bit";
  EXPECT_TRUE(SameBits(Run(2, 2, DType::kBF16, true, true), want)) << "nor do slices";
  EXPECT_TRUE(SameBits(Run(2, 3, DType::kBF16, true, true), want)) << "nor a stage in the middle";
  const std::vector<Outcome> of_four = Run(4, 1, DType::kBF16, true);
  EXPECT_TRUE(SameBits(Run(4, 2, DType::kBF16, true, true), of_four));
}

}  // namespace
}  // namespace lockstep::testing
