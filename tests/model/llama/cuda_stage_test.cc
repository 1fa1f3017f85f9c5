// LlamaStage over the CUDA backend: generations through its kernels, products, copies and recorded
// steps. On the emulation of CUDA, and on real GPUs (tests/gpu/run.sh).
#include <algorithm>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/uniform_batch.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/model/llama/golden.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/support/assets.h"
#include "tests/support/read_file.h"

namespace lockstep::testing {
namespace {

#ifdef LOCKSTEP_CUDA_EMULATION
constexpr bool kIsEmulated = true;
#else
constexpr bool kIsEmulated = false;
#endif

std::function<std::unique_ptr<Backend>()> CudaBackends(DType compute, bool deterministic = false) {
  return [=]() -> std::unique_ptr<Backend> {
    auto backend = cuda::CudaBackend::Create({.compute = compute, .deterministic = deterministic});
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  };
}

class CudaStageTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::filesystem::path directory = SharedAssets() / "models" / GetParam();
    SKIP_WITHOUT_ASSET(directory);
    auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    TakeCases(80, 12);
    ASSERT_FALSE(cases_.empty());
  }

  // Prompts and generations of so many tokens at most.
  void TakeCases(size_t most_prompt, size_t most_greedy) {
    cases_.clear();
    requests_.clear();
    for (GoldenCase& golden : ReadGolden(SharedAssets() / "models" / GetParam())) {
      if (golden.prompt.size() > most_prompt) continue;
      golden.greedy_tokens.resize(std::min(golden.greedy_tokens.size(), most_greedy));
      requests_.push_back({golden.prompt, static_cast<int>(golden.greedy_tokens.size())});
      cases_.push_back(std::move(golden));
    }
  }

  std::vector<Outcome> Run(const DriveOptions& options) {
    auto outcomes = Drive(*checkpoint_, options, requests_);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return *std::move(outcomes);
  }

  DriveOptions Options(DType compute, bool deterministic = false) const {
    DriveOptions options;
    options.make_backend = CudaBackends(compute, deterministic);
    options.stage.weights = WeightsIn(compute);
    options.stage.limits = {.max_batched_tokens = 96, .max_num_seqs = 4, .max_model_len = 160};
    options.chunk = 50;
    return options;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<GoldenCase> cases_;
  std::vector<Request> requests_;
};

// Whole where that does not take minutes. Other dtypes' rounding is larger than the margin between
// some tokens of the whole.
TEST_P(CudaStageTest, F32ComputesTheGoldenNumbers) {
  DriveOptions options = Options(DType::kF32);
  if (!kIsEmulated) {
    constexpr size_t kAll = std::numeric_limits<size_t>::max();
    TakeCases(kAll, kAll);
    options.stage.limits = {.max_batched_tokens = 256, .max_num_seqs = 4, .max_model_len = 2304};
    options.chunk = 200;
  }
  const std::vector<Outcome> outcomes = Run(options);
  for (size_t i = 0; i < cases_.size(); ++i) ExpectGolden(outcomes[i], cases_[i]);
}

TEST_P(CudaStageTest, Bf16IsAsNearAsItsRounding) {
  DriveOptions cpu = Options(DType::kBF16);
  cpu.make_backend = CpuBackends(1);
  EXPECT_LT(Distance(Run(Options(DType::kBF16)), Run(cpu)), 0.02);
}

// 11 bits, an eighth of bf16's rounding, in weights, products' inputs and cache: of logits up
// to 44.
// Steps whose products are rounded; some of a sequence's tokens follow in a short one.
TEST_P(CudaStageTest, Bf16OfLongStepsIsAsNear) {
  std::vector<int32_t> prompt;
  while (std::ssize(prompt) < 270) {
    prompt.insert(prompt.end(), cases_[0].prompt.begin(), cases_[0].prompt.end());
  }
  prompt.resize(270);
  requests_ = {{prompt, 2}, {{1, 2, 3}, 2}};
  DriveOptions options = Options(DType::kBF16);
  options.stage.limits = {.max_batched_tokens = 262, .max_num_seqs = 2, .max_model_len = 288};
  options.chunk = 260;
  DriveOptions cpu = options;
  cpu.make_backend = CpuBackends(1);
  EXPECT_LT(Distance(Run(options), Run(cpu)), 0.02);
}

// Of 260 tokens almost all go on after the last layer's attention, so that what is added behind the
// last product is rounded, too.
TEST_P(CudaStageTest, RowsWithLogitsOfLongStepsAreNearThoseOfAll) {
  const std::unique_ptr<Backend> backend = CudaBackends(DType::kBF16)();
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  StageOptions options = Options(DType::kBF16).stage;
  options.limits = {.max_batched_tokens = 260, .max_num_seqs = 1, .max_model_len = 260};
  auto stage = LlamaStage::Load(*checkpoint_, *ProcessGrid::Create(1, 1), 0, *backend, groups,
                                options, nullptr);
  ASSERT_TRUE(stage.ok()) << stage.status();
  ASSERT_TRUE((*stage)->AllocateKvCache(17).ok());
  StepBatch batch = MakeUniformBatch({.num_seqs = 1,
                                      .context = 260,
                                      .new_tokens = 260,
                                      .vocab_size = checkpoint_->config().vocab_size});
  const auto last_of = [&](int32_t first_row) {
    batch.logits_rows.resize(static_cast<size_t>(260 - first_row));
    std::iota(batch.logits_rows.begin(), batch.logits_rows.end(), first_row);
    EXPECT_TRUE((*stage)->Forward(batch).ok());
    const auto logits = (*stage)->Logits(259 - first_row, 1);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return Outcome{.greedy = {}, .logits = {{*logits, *logits + checkpoint_->config().vocab_size}}};
  };
  EXPECT_LT(Distance({last_of(2)}, {last_of(0)}), 0.02);
}

TEST_P(CudaStageTest, F16ComputesTheGoldenNumbersWithinItsRounding) {
  const std::vector<Outcome> outcomes = Run(Options(DType::kF16));
  for (size_t i = 0; i < cases_.size(); ++i) ExpectGolden(outcomes[i], cases_[i], 0.1);
  DriveOptions cpu = Options(DType::kF32);
  cpu.make_backend = CpuBackends(1);
  EXPECT_LT(Distance(outcomes, Run(cpu)), 0.0025);
}

// Chunks, batches and recorded steps do not change a bit.
TEST_P(CudaStageTest, DeterministicTokensDependOnTheirSequenceAlone) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const DriveOptions together = Options(dtype, /*deterministic=*/true);
    const std::vector<Outcome> want = Run(together);
    DriveOptions alone = together;
    alone.chunk = 7;
    alone.stage.limits.max_num_seqs = 1;
    EXPECT_TRUE(SameBits(Run(alone), want));
    DriveOptions staggered = together;
    staggered.staggered = true;
    staggered.block_seed = 9;
    EXPECT_TRUE(SameBits(Run(staggered), want));
  }
}

TEST_P(CudaStageTest, Fp8TakesMultiplesOf16) {
  SKIP_WITHOUT_FP8();
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    DriveOptions fp8 = Options(dtype);
    fp8.stage.quantize = Quantization::kFp8;
    const auto outcomes = Drive(*checkpoint_, fp8, requests_);
    if (checkpoint_->config().intermediate_size % 16 == 0) {
      EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    } else {
      EXPECT_EQ(outcomes.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

// Where rounding to bf16 makes an e4m3 number another, it is the next one: near, as caches in e4m3
// are to those in bf16, and nearer.
TEST_P(CudaStageTest, Fp8CachesTakeHeadsOfMultiplesOf16) {
  DriveOptions fp8 = Options(DType::kBF16, /*deterministic=*/true);
  fp8.stage.kv_cache = KvDType::kFp8;
  if (checkpoint_->config().head_dim % 16 != 0) {
    const absl::Status refused = Drive(*checkpoint_, fp8, requests_).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("fp8 of heads of 8"));
    return;
  }
  const std::vector<Outcome> got = Run(fp8);
  DriveOptions cpu = fp8;
  cpu.make_backend = CpuBackends(1);
  const std::vector<Outcome> want = Run(cpu);
  cpu.stage.kv_cache = KvDType::kAuto;
  const double cost = Distance(want, Run(cpu));
  EXPECT_LT(Distance(got, want), cost / 2) << cost;
  fp8.chunk = 7;
  fp8.staggered = true;
  EXPECT_TRUE(SameBits(Run(fp8), got));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaStageTest, ::testing::Values("stories260K", "tiny-llama31"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CudaStoriesTest, TheReferencesTextComesToItsEnd) {
  const std::filesystem::path directory = SharedAssets() / "models/stories260K";
  SKIP_WITHOUT_ASSET(directory);
  std::string expected = ReadFile(directory / "expected_greedy_256.txt");
  while (expected.ends_with('\n')) expected.pop_back();
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto tokenizer = Tokenizer::Load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  DriveOptions options;
  options.make_backend = CudaBackends(DType::kF32);
  options.stage.weights = StageOptions::Weights::kF32;
  options.stage.limits = {.max_batched_tokens = 16, .max_num_seqs = 1, .max_model_len = 272};
  const auto outcomes = Drive(**checkpoint, options, {{{1}, kIsEmulated ? 32 : 256}});
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  std::vector<int32_t> tokens = outcomes->front().greedy;
  tokens.insert(tokens.begin(), 1);
  const auto text = (*tokenizer)->Decode(tokens, /*include_special_tokens=*/false);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(kIsEmulated ? expected.substr(0, text->size()) : expected, *text);
  EXPECT_GT(text->size(), 60u);
}

// e4m3 has 3 bits of mantissa: a trained model does not mind, on text of its own.
TEST(CudaDemoModelTest, Fp8SaysWhatBf16Says) {
  SKIP_WITHOUT_FP8();
  const auto checkpoint =
      Checkpoint::Open(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "deploy/demo/model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  DriveOptions options;
  options.stage.weights = StageOptions::Weights::kBF16;
  options.stage.limits = {.max_batched_tokens = 64, .max_num_seqs = 2, .max_model_len = 64};
  options.make_backend = CpuBackends(1);
  std::vector<Request> requests = {{{1, 500}, 46}, {{1, 900, 77}, 45}};
  const auto text = Drive(**checkpoint, options, requests);
  ASSERT_TRUE(text.ok()) << text.status();
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt.insert(requests[i].prompt.end(), (*text)[i].greedy.begin(),
                              (*text)[i].greedy.end());
    requests[i].num_greedy = 1;
  }
  const auto want = Drive(**checkpoint, options, requests);
  options.make_backend = CudaBackends(DType::kBF16);
  options.stage.quantize = Quantization::kFp8;
  const auto got = Drive(**checkpoint, options, requests);
  ASSERT_TRUE(want.ok() && got.ok()) << got.status();
  EXPECT_LT(Distance(*got, *want), 0.1);
  int num_same = 0;
  int num_tokens = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t t = 0; t < (*got)[i].logits.size(); ++t, ++num_tokens) {
      const auto likeliest = [t](const Outcome& outcome) {
        const std::vector<float>& logits = outcome.logits[t];
        return std::max_element(logits.begin(), logits.end()) - logits.begin();
      };
      num_same += likeliest((*got)[i]) == likeliest((*want)[i]) ? 1 : 0;
    }
  }
  EXPECT_GE(num_same, num_tokens * 9 / 10);
}

}  // namespace
}  // namespace lockstep::testing
