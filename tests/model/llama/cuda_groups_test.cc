// Several ranks with a GPU each: whole generations over NCCL, both emulated.
#include <atomic>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/accelerator.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/uniform_batch.h"
#include "parallel/device_communicators.h"
#include "tests/model/llama/golden.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/parallel/run_ranks.h"
#include "tests/support/assets.h"
#include "tests/support/cuda_emulation/emulation.h"

extern "C" const lockstep::AcceleratorPlugin* lockstep_plugin();

namespace lockstep::testing {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr int64_t kHiddenSize = 64;  // of stories260K

absl::StatusOr<RankGroups> OverNccl(Backend& backend, RankGroups& host, int64_t most_tokens) {
  return MakeDeviceGroups(lockstep_plugin()->accelerator->communicators(), backend, host,
                          {.max_hidden_states = most_tokens * kHiddenSize,
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
    model_ = checkpoint_.get();
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
                           bool stages_lie_apart = false,
                           std::optional<int64_t> most_undivided_bytes = std::nullopt) {
    cuda_emulation::SetDevice({.num_devices = tp * pp});
    std::atomic<int> next_device{0};
    DriveOptions options;
    options.tp = tp;
    options.pp = pp;
    options.make_backend = [&]() -> std::unique_ptr<Backend> {
      // Steps that are kept are padded, and want all rows' logits.
      auto backend = cuda::CudaBackend::Create({.device = next_device++,
                                                .compute = compute,
                                                .deterministic = deterministic,
                                                .keep_steps = !only_needed_logits_});
      EXPECT_TRUE(backend.ok()) << backend.status();
      return *std::move(backend);
    };
    options.make_device_groups = [&](Backend& backend, RankGroups& host) {
      return OverNccl(backend, host, limits_.max_batched_tokens);
    };
    options.stages_lie_apart = stages_lie_apart;
    options.most_undivided_bytes = most_undivided_bytes;
    options.only_needed_logits = only_needed_logits_;
    options.stage.quantize = quantize_;
    options.stage.weights = WeightsIn(compute);
    options.stage.limits = limits_;
    options.chunk = chunk_;
    auto outcomes = Drive(*model_, options, requests_);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return *std::move(outcomes);
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<GoldenCase> cases_;
  std::vector<Request> requests_;
  const Checkpoint* model_ = nullptr;
  Quantization quantize_ = Quantization::kNone;
  bool only_needed_logits_ = false;
  BatchLimits limits_{.max_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 80};
  int64_t chunk_ = 30;
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

TEST_F(CudaGroupsTest, F16ComputesTheGoldenNumbersWithinItsRounding) {
  for (const auto& [tp, pp] : {std::pair(2, 1), std::pair(1, 2)}) {
    const std::vector<Outcome> outcomes = Run(tp, pp, DType::kF16, false);
    for (size_t i = 0; i < cases_.size(); ++i) ExpectGolden(outcomes[i], cases_[i], 0.02);
  }
}

TEST_F(CudaGroupsTest, DeterministicF16RunsAreTheSameToTheBit) {
  const std::vector<Outcome> want = Run(2, 1, DType::kF16, true);
  EXPECT_TRUE(SameBits(Run(2, 1, DType::kF16, true), want));
  EXPECT_TRUE(SameBits(Run(2, 2, DType::kF16, true, true), want)) << "stages and slices";
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

// Two chunks of so many tokens, with others in the same steps; then decodes.
std::vector<Request> LongAndShort(int32_t chunk) {
  Request request{.prompt = {}, .num_greedy = 2};
  for (int32_t i = 0; i < 2 * chunk; ++i) request.prompt.push_back(1 + i * 37 % 500);
  return {request, {{1, 2, 3}, 3}};
}

// Steps whose products are rounded: what is added up over ranks is not, and what a stage hands over
// is the sum.
TEST_F(CudaGroupsTest, LongStepsAreNearThoseOfOneRank) {
  Request request{.prompt = {}, .num_greedy = 1};
  for (int32_t i = 0; i < 262; ++i) request.prompt.push_back(1 + i * 37 % 500);
  requests_ = {request};
  limits_ = {.max_batched_tokens = 260, .max_num_seqs = 1, .max_model_len = 264};
  chunk_ = 260;
  const std::vector<Outcome> want = Run(1, 1, DType::kBF16, false);
  EXPECT_LT(Distance(Run(1, 2, DType::kBF16, false), want), 0.02);
  for (const std::optional<int64_t> most_undivided : {std::optional<int64_t>(), {0}}) {
    EXPECT_LT(Distance(Run(2, 1, DType::kBF16, false, false, most_undivided), want), 0.02);
  }
}

TEST_F(CudaGroupsTest, DividedTokensChangeNoBitOfDeterministicRuns) {
  requests_ = LongAndShort(30);
  const std::vector<Outcome> want = Run(2, 2, DType::kBF16, true);
  EXPECT_TRUE(SameBits(Run(2, 2, DType::kBF16, true, true, 0), want));
  EXPECT_TRUE(SameBits(Run(2, 2, DType::kBF16, true, false, 16 * kHiddenSize * 4), want))
      << "some of the steps";
}

TEST_F(CudaGroupsTest, TokensWithoutLogitsAreLeftAndChangeNoBitOfTheOthers) {
  requests_ = LongAndShort(30);
  const std::vector<Outcome> want = OfNeededLogits(Run(2, 2, DType::kBF16, true));
  only_needed_logits_ = true;
  EXPECT_TRUE(SameBits(Run(2, 2, DType::kBF16, true), want));
  EXPECT_TRUE(SameBits(Run(2, 2, DType::kBF16, true, true, 0), want)) << "divided";
}

class CudaFp8GroupsTest : public CudaGroupsTest {
 protected:
  void SetUp() override {
    CudaGroupsTest::SetUp();
    model_ = &small_.checkpoint();
    chunk_ = 70;  // more than are multiplied by our own kernels
    requests_ = LongAndShort(70);
    limits_ = {.max_batched_tokens = 150, .max_num_seqs = 4, .max_model_len = 160};
    quantize_ = Quantization::kFp8;
  }

 private:
  static ModelConfig Config() {
    ModelConfig config = SmallConfig(/*num_kv_heads=*/2);
    config.intermediate_size = 128;  // FP8 comes in multiples of 16
    return config;
  }
  const TemporaryModel small_{Config(), DType::kF32};
};

// Rows of chunks are; those of decodes are gathered as they are.
TEST_F(CudaFp8GroupsTest, DividedTokensAreQuantizedBeforeTheyAreGathered) {
  const std::vector<Outcome> want = Run(2, 1, DType::kBF16, true);
  EXPECT_TRUE(SameBits(Run(2, 1, DType::kBF16, true, false, 0), want));
  // Otherwise products of few rows, and so decodes, are whichever is measured to be faster.
  const std::vector<Outcome> others = Run(2, 1, DType::kBF16, false, false, 0);
  for (size_t i = 0; i < want.size(); ++i) {
    for (size_t row = 0; row < requests_[i].prompt.size(); ++row) {
      EXPECT_THAT(others[i].logits[row], Pointwise(FloatNear(0.2f), want[i].logits[row]));
    }
  }
}

TEST_F(CudaFp8GroupsTest, TokensWithoutLogitsAreLeftAndChangeNoBitOfTheOthers) {
  const std::vector<Outcome> want = OfNeededLogits(Run(2, 1, DType::kBF16, true));
  only_needed_logits_ = true;
  EXPECT_TRUE(SameBits(Run(2, 1, DType::kBF16, true), want));
  EXPECT_TRUE(SameBits(Run(2, 1, DType::kBF16, true, false, 0), want)) << "divided";
}

// Two stages of a pipeline, each on a device of its own.
class CudaPipelineTest : public CudaGroupsTest {
 protected:
  struct Stage {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<RankGroups> groups = std::make_unique<RankGroups>();  // the stage refers to it
    std::unique_ptr<LlamaStage> stage;
  };
  absl::StatusOr<Stage> Load(int rank, RankGroups& host) {
    Stage made;
    ASSIGN_OR_RETURN(made.backend,
                     cuda::CudaBackend::Create({.device = rank, .compute = DType::kF32}));
    ASSIGN_OR_RETURN(*made.groups, OverNccl(*made.backend, host, limits_.max_batched_tokens));
    StageOptions options;
    options.weights = StageOptions::Weights::kF32;
    options.limits = limits_;
    ASSIGN_OR_RETURN(made.stage, LlamaStage::Load(*checkpoint_, *ProcessGrid::Create(1, 2), rank,
                                                  *made.backend, *made.groups, options, nullptr));
    RETURN_IF_ERROR(made.stage->AllocateKvCache(8));
    return made;
  }
  StepBatch Prompt(int64_t num_tokens, bool wants_logits) const {
    StepBatch batch = MakeUniformBatch({.num_seqs = 1,
                                        .context = num_tokens,
                                        .new_tokens = num_tokens,
                                        .block_size = BatchLimits().block_size,
                                        .vocab_size = checkpoint_->config().vocab_size});
    if (!wants_logits) batch.logits_rows.clear();
    return batch;
  }
  // Of the first row that the last stage has computed.
  static absl::StatusOr<std::vector<float>> Logits(Stage& stage) {
    ASSIGN_OR_RETURN(const float* logits, stage.stage->Logits(0, 1));
    return std::vector<float>(logits, logits + stage.stage->shape().vocab.size());
  }
};

// Of steps that are kept, too: the first does not wait in its stream for whoever takes its numbers,
// and they are still its own when the second has been computed into the same buffer.
TEST_F(CudaPipelineTest, AStageComputesOnBeforeTheNextHasTakenItsNumbers) {
  cuda_emulation::SetDevice({.num_devices = 2});
  RunRanks(1, 2, [&](int rank, RankGroups& host) -> absl::Status {
    ASSIGN_OR_RETURN(Stage stage, Load(rank, host));
    const bool is_last = rank == 1;
    const StepBatch batches[] = {Prompt(5, is_last), Prompt(7, is_last)};
    std::vector<float> want[2];
    for (int round = 0; round < 3; ++round) {
      for (const int i : {0, 1}) {
        RETURN_IF_ERROR(stage.stage->Forward(batches[i]));
        if (is_last) {
          ASSIGN_OR_RETURN(want[i], Logits(stage));
        }
      }
    }
    if (!is_last) {
      stage.backend->Synchronize();
      RETURN_IF_ERROR(host.pp->Barrier());
      RETURN_IF_ERROR(stage.stage->Forward(batches[0]));
      stage.backend->Synchronize();  // and nobody has come
      RETURN_IF_ERROR(stage.stage->Forward(batches[1]));
      return host.pp->Barrier();
    }
    EXPECT_NE(want[0], want[1]);
    RETURN_IF_ERROR(host.pp->Barrier());
    RETURN_IF_ERROR(host.pp->Barrier());
    for (const int i : {0, 1}) {
      RETURN_IF_ERROR(stage.stage->Forward(batches[i]));
      ASSIGN_OR_RETURN(const std::vector<float> logits, Logits(stage));
      EXPECT_EQ(logits, want[i]);
    }
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep::testing
