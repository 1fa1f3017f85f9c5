// Steps of chunks and decodes, padded, recorded and replayed over the CUDA backend, against the
// same steps issued as they are: on the emulation of CUDA.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/model/llama/temporary_model.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

constexpr int kBlockSize = 16;
constexpr int64_t kMaxModelLen = 1120;  // more than one split of attention's, fixed or not
constexpr int64_t kMaxBlocksPerSeq = kMaxModelLen / kBlockSize;

// New tokens of a sequence in a step.
struct Work {
  int sequence;
  int num_tokens;
};
using Mix = std::vector<Work>;

// Cached when sequences 3 and 5 begin.
constexpr int64_t kSharedTokens = 2 * kBlockSize;
constexpr int64_t kLongTokens = kMaxModelLen - 2 * kBlockSize;
constexpr int32_t kLongBlock = 100;  // the first of its own

// Blocks, of which the last stands for those after it, too. Sequence 3 has its first two from
// sequence 0; sequence 5 has one of them over and over, but for its last two.
const std::vector<std::vector<int32_t>> kFirstBlocks = {
    {0}, {20}, {40}, {0, 1, 60}, {80}, std::vector<int32_t>(kLongTokens / kBlockSize, 0)};
constexpr int64_t kNumBlocks = 110;

class Sequences {
 public:
  StepBatch Next(const Mix& mix) {
    StepBatch batch;
    batch.query_starts = {0};
    for (const Work& work : mix) Add(work, batch);
    return batch;
  }

 private:
  // Sequence 5 comes when 3 is no more.
  static int32_t RowOf(int sequence) { return (sequence == 5 ? 3 : sequence) * 3 % 5; }
  static int32_t BlockOf(int sequence, int64_t index) {
    const std::vector<int32_t>& first = kFirstBlocks[static_cast<size_t>(sequence)];
    const int64_t last = std::ssize(first) - 1;
    if (index <= last) return first[static_cast<size_t>(index)];
    if (sequence == 5) return kLongBlock + static_cast<int32_t>(index - last) - 1;
    return first.back() + static_cast<int32_t>(index - last);
  }

  void Add(const Work& work, StepBatch& batch) {
    int64_t& length = lengths_[work.sequence];
    for (int i = 0; i < work.num_tokens; ++i, ++length) {
      // What sequence 3 begins with is what sequence 0 begins with.
      batch.token_ids.push_back(static_cast<int32_t>((length * 31 + work.sequence % 3 * 7) % 515));
      batch.positions.push_back(static_cast<int32_t>(length));
      batch.slot_mapping.push_back(
          int64_t{BlockOf(work.sequence, length / kBlockSize)} * kBlockSize + length % kBlockSize);
    }
    batch.query_starts.push_back(static_cast<int32_t>(batch.num_tokens()));
    batch.logits_rows.push_back(static_cast<int32_t>(batch.num_tokens() - 1));
    batch.context_lens.push_back(static_cast<int32_t>(length));
    batch.table_rows.push_back(RowOf(work.sequence));
    int64_t& num_blocks = num_blocks_[work.sequence];
    for (; num_blocks * kBlockSize < length; ++num_blocks) {
      batch.new_blocks.push_back({RowOf(work.sequence), static_cast<int32_t>(num_blocks),
                                  BlockOf(work.sequence, num_blocks)});
    }
  }

  int64_t lengths_[6] = {0, 0, 0, kSharedTokens, 0, kLongTokens};
  int64_t num_blocks_[6] = {};  // that the stage knows of
};

// One after another: each sequence goes on where it was.
const std::vector<Mix> kMixes = {
    {{0, 32}},                                 // as many tokens as its shape, up to a block's edge
    {{3, 1}, {1, 63}},                         // a cached prefix; one token beside a chunk of 63
    {{0, 1}, {1, 1}, {2, 63}},                 // up to one token short of a block's edge
    {{2, 2}, {3, 15}},                         // over an edge, and up to one
    {{0, 1}, {1, 1}, {2, 1}, {3, 1}},          // decodes only
    {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 2}},  // all sequences there may be
    {{4, 100}},                                // alone, much padded
    {{4, 128}, {0, 1}},                        // too many: left as it is
    {{5, 31}, {1, 1}},
    {{0, 5}, {2, 5}, {5, 1}},  // as speculation makes them; the last reaches the longest context
};

struct Results {
  std::vector<std::vector<float>> logits;  // of each mix, one row after another
  std::vector<bool> was_replayed;          // of each mix
};

struct Numbers {
  DType dtype;
  bool deterministic;
  Quantization quantize = Quantization::kNone;
  KvDType kv_cache = KvDType::kAuto;
};

// The whole model on one rank.
absl::StatusOr<std::unique_ptr<LlamaStage>> LoadAlone(const TemporaryModel& model, Backend& backend,
                                                      RankGroups& groups,
                                                      const StageOptions& options) {
  return LlamaStage::Load(model.checkpoint(), *ProcessGrid::Create(1, 1), 0, backend, groups,
                          options, nullptr);
}

// Runs all mixes `num_rounds` times from the beginning; the last round's.
Results RunMixes(const TemporaryModel& model, const Numbers& numbers, bool keep_steps,
                 int num_rounds) {
  auto backend = cuda::CudaBackend::Create(
      {.compute = numbers.dtype, .deterministic = numbers.deterministic, .keep_steps = keep_steps});
  EXPECT_TRUE(backend.ok()) << backend.status();
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  StageOptions options;
  options.weights = StageOptions::Weights::kAuto;
  options.quantize = numbers.quantize;
  options.kv_cache = numbers.kv_cache;
  options.limits = {.max_batched_tokens = 160,
                    .max_num_seqs = 5,
                    .max_model_len = kMaxModelLen,
                    .block_size = kBlockSize};
  int num_layers_issued = 0;
  options.on_progress = [&] { ++num_layers_issued; };
  auto stage = LoadAlone(model, **backend, groups, options);
  EXPECT_TRUE(stage.ok()) << stage.status();
  EXPECT_TRUE((*stage)->AllocateKvCache(kNumBlocks).ok());
  const int64_t vocab = (*stage)->shape().vocab.size();
  Results results;
  for (int round = 0; round < num_rounds; ++round) {
    Sequences sequences;
    results = {};
    for (const Mix& mix : kMixes) {
      const int issued_before = num_layers_issued;
      const absl::Status status = (*stage)->Forward(sequences.Next(mix));
      EXPECT_TRUE(status.ok()) << status;
      const auto logits = (*stage)->Logits(0, std::ssize(mix));
      EXPECT_TRUE(logits.ok()) << logits.status();
      results.logits.emplace_back(*logits, *logits + std::ssize(mix) * vocab);
      results.was_replayed.push_back(num_layers_issued == issued_before);
    }
  }
  return results;
}

ModelConfig TwoLayers() {
  ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  config.num_layers = 2;
  config.head_dim = 16;  // as fp8 caches need it
  return config;
}

StageOptions ShortSteps() {
  StageOptions options;
  options.limits = {.max_batched_tokens = 40,
                    .max_num_seqs = 5,
                    .max_model_len = kMaxModelLen,
                    .block_size = kBlockSize};
  return options;
}

class CudaPaddedStepsTest : public ::testing::TestWithParam<Numbers> {};

void ExpectClose(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double difference = 0;
  double length = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(got[i] - want[i], 2);
    length += std::pow(want[i], 2);
  }
  EXPECT_LE(std::sqrt(difference / length), tolerance);
}

TEST_P(CudaPaddedStepsTest, ReplaysComputeWhatStepsAsTheyAreDo) {
  const Numbers numbers = GetParam();
  if (numbers.quantize == Quantization::kFp8) SKIP_WITHOUT_FP8();
  const TemporaryModel model(TwoLayers(), numbers.dtype);
  const Results want = RunMixes(model, numbers, /*keep_steps=*/false, /*num_rounds=*/1);
  const Results got = RunMixes(model, numbers, /*keep_steps=*/true, /*num_rounds=*/3);
  for (size_t i = 0; i < kMixes.size(); ++i) {
    SCOPED_TRACE("mix " + std::to_string(i));
    EXPECT_FALSE(want.was_replayed[i]);
    const bool is_small = kMixes[i].front().num_tokens < 128;
    EXPECT_EQ(got.was_replayed[i], is_small);
    if (numbers.deterministic) {
      EXPECT_EQ(got.logits[i], want.logits[i]);
    } else {
      ExpectClose(got.logits[i], want.logits[i], numbers.dtype == DType::kF32 ? 1e-5 : 0.02);
    }
  }
}

class CudaWarmUpTest : public ::testing::TestWithParam<bool> {};

// Whatever a server's small steps are, and however long contexts have become, they are recorded
// before it is ready.
TEST_P(CudaWarmUpTest, EveryPaddedStepIsReplayedAtOnce) {
  const TemporaryModel model(TwoLayers(), DType::kBF16);
  auto backend = cuda::CudaBackend::Create({.deterministic = GetParam()});
  ASSERT_TRUE(backend.ok()) << backend.status();
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  StageOptions options = ShortSteps();
  int num_layers_issued = 0;
  options.on_progress = [&] { ++num_layers_issued; };
  auto stage = LoadAlone(model, **backend, groups, options);
  ASSERT_TRUE(stage.ok()) << stage.status();
  ASSERT_TRUE((*stage)->AllocateKvCache(kNumBlocks).ok());
  ASSERT_TRUE((*stage)->WarmUp().ok());
  num_layers_issued = 0;
  Sequences sequences;
  for (const Mix& mix :
       {Mix{{0, 37}}, Mix{{0, 13}, {1, 1}, {2, 1}, {4, 1}}, Mix{{2, 3}}, Mix{{0, 1}},
        Mix{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}, Mix{{0, 39}, {1, 1}}, Mix{{0, 40}},
        Mix{{0, 1}}, Mix{{0, 1}, {1, 1}}, Mix{{0, 40}}, Mix{{0, 1}, {2, 1}, {3, 1}},
        Mix{{0, 2}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}, Mix{{1, 30}, {0, 1}},
        // Sequence 5's context is longer than a split.
        Mix{{5, 1}}, Mix{{5, 12}}, Mix{{0, 1}, {5, 1}}, Mix{{5, 7}, {0, 1}, {1, 1}, {2, 1}},
        Mix{{0, 1}, {1, 1}, {2, 1}, {4, 1}, {5, 1}}}) {
    ASSERT_TRUE((*stage)->Forward(sequences.Next(mix)).ok());
    EXPECT_EQ(num_layers_issued, 0) << mix.front().num_tokens << ", " << mix.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaWarmUpTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Deterministic" : "Fastest");
});

#ifdef LOCKSTEP_CUDA_EMULATION
// Of 1 GiB, with graphs of 1 MiB.
class CudaMemoryOfStepsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kGraphBytes = 1 << 20;
  CudaMemoryOfStepsTest() {
    cuda_emulation::SetDevice({.memory_bytes = int64_t{1} << 30, .graph_bytes = kGraphBytes});
  }
  ~CudaMemoryOfStepsTest() override { cuda_emulation::SetDevice({}); }
};

// All that the steps take is known before the cache is sized, so that what fits still fits when
// they are recorded again, and no more does.
TEST_F(CudaMemoryOfStepsTest, TheCacheTakesWhatAWarmUpLeaves) {
  const TemporaryModel model(TwoLayers(), DType::kBF16);
  std::vector<std::string> notices;
  auto backend =
      cuda::CudaBackend::Create({.memory_fraction = 0.9, .notice = [&](const std::string& text) {
                                   notices.push_back(text);
                                 }});
  ASSERT_TRUE(backend.ok()) << backend.status();
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  StageOptions options = ShortSteps();
  int num_layers_issued = 0;
  options.on_progress = [&] { ++num_layers_issued; };
  auto stage = LoadAlone(model, **backend, groups, options);
  ASSERT_TRUE(stage.ok()) << stage.status();
  const DeviceMemory loaded = (*backend)->Memory();

  const int64_t for_steps = (*stage)->num_warm_up_blocks();
  EXPECT_EQ(for_steps, 3);  // of 40 tokens
  ASSERT_TRUE((*stage)->AllocateKvCache(for_steps).ok());
  ASSERT_TRUE((*stage)->WarmUp().ok());
  const DeviceMemory warm = (*backend)->Memory();
  EXPECT_GE(warm.other_bytes, loaded.other_bytes + 10 * kGraphBytes);
  const int64_t block_bytes = (*stage)->kv_block_bytes();
  const int64_t fitting = warm.left_bytes / block_bytes + for_steps;
  ASSERT_GT(fitting, kNumBlocks);
  EXPECT_LT(fitting, loaded.left_bytes / block_bytes);

  ASSERT_TRUE((*stage)->AllocateKvCache(fitting).ok());
  num_layers_issued = 0;
  ASSERT_TRUE((*stage)->KeepSteps().ok());
  const int num_recorded = num_layers_issued;
  EXPECT_GT(num_recorded, 0);
  const int64_t left = (*backend)->Memory().left_bytes;
  EXPECT_GE(left, 0);
  EXPECT_LT(left, block_bytes);
  EXPECT_TRUE(notices.empty()) << notices.front();
  Sequences sequences;
  for (const Mix& mix : {Mix{{0, 37}}, Mix{{0, 1}}, Mix{{0, 13}, {1, 1}, {2, 1}, {4, 1}}}) {
    ASSERT_TRUE((*stage)->Forward(sequences.Next(mix)).ok());
    EXPECT_EQ(num_layers_issued, num_recorded) << "a step was not recorded";
  }
}

// Kernels of ours in a step of so many tokens, all with logits, whose products' algorithms are
// known.
int64_t KernelsOfAStep(const TemporaryModel& model, const Numbers& numbers, int num_tokens) {
  auto backend = cuda::CudaBackend::Create(
      {.compute = numbers.dtype, .deterministic = numbers.deterministic, .keep_steps = false});
  EXPECT_TRUE(backend.ok()) << backend.status();
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  StageOptions options = ShortSteps();
  options.limits.max_batched_tokens = num_tokens;
  options.quantize = numbers.quantize;
  auto stage = LoadAlone(model, **backend, groups, options);
  EXPECT_TRUE(stage.ok()) << stage.status();
  EXPECT_TRUE((*stage)->AllocateKvCache(kNumBlocks).ok());
  const auto run = [&] {
    StepBatch batch = Sequences().Next({{0, num_tokens}});
    batch.logits_rows.resize(static_cast<size_t>(num_tokens));
    std::iota(batch.logits_rows.begin(), batch.logits_rows.end(), 0);
    EXPECT_TRUE((*stage)->Forward(batch).ok());
    (*backend)->Synchronize();
    return cuda_emulation::NumKernelsRun();
  };
  const int64_t before = run();
  return run() - before;
}

TEST(CudaFp8KernelsTest, OnlyWhatAttentionWritesIsQuantizedByItself) {
  const ModelConfig config = TwoLayers();
  const TemporaryModel model(config, DType::kBF16);
  constexpr int kTokens = 80;  // more than are multiplied by our own kernels
  for (const bool deterministic : {false, true}) {
    const int64_t plain = KernelsOfAStep(model, {DType::kBF16, deterministic}, kTokens);
    EXPECT_EQ(KernelsOfAStep(model, {DType::kBF16, deterministic, Quantization::kFp8}, kTokens),
              plain + config.num_layers);
  }
}
#endif

// A worker whose controller is another one may be given another number of blocks.
TEST(CudaCacheSizeTest, StepsKeptForOneCacheAreForgottenWithIt) {
  const TemporaryModel model(TwoLayers(), DType::kF32);
  auto backend = cuda::CudaBackend::Create({.compute = DType::kF32});
  ASSERT_TRUE(backend.ok()) << backend.status();
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  StageOptions options = ShortSteps();
  const auto load = [&] { return LoadAlone(model, **backend, groups, options); };
  const auto run_to_replays = [](LlamaStage& stage) {
    Sequences sequences;
    std::vector<float> all;
    for (const Mix& mix : {Mix{{0, 32}}, Mix{{0, 1}}, Mix{{0, 1}}, Mix{{0, 1}}}) {
      EXPECT_TRUE(stage.Forward(sequences.Next(mix)).ok());
      const auto logits = stage.Logits(0, 1);
      EXPECT_TRUE(logits.ok()) << logits.status();
      all.insert(all.end(), *logits, *logits + stage.shape().vocab.size());
    }
    return all;
  };
  auto stage = load();
  ASSERT_TRUE(stage.ok()) << stage.status();
  ASSERT_TRUE((*stage)->AllocateKvCache(kNumBlocks).ok());
  const std::vector<float> want = run_to_replays(**stage);
  ASSERT_TRUE((*stage)->AllocateKvCache(2 * kNumBlocks).ok());
  EXPECT_EQ(run_to_replays(**stage), want);
  stage->reset();
  auto next = load();
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_TRUE((*next)->AllocateKvCache(kNumBlocks).ok());
  EXPECT_EQ(run_to_replays(**next), want);
}

INSTANTIATE_TEST_SUITE_P(
    Numbers, CudaPaddedStepsTest,
    ::testing::Values(Numbers{DType::kF32, false}, Numbers{DType::kBF16, false},
                      Numbers{DType::kBF16, true}, Numbers{DType::kF16, true},
                      Numbers{DType::kBF16, true, Quantization::kFp8},
                      Numbers{DType::kF16, true, Quantization::kFp8},
                      Numbers{DType::kBF16, false, Quantization::kNone, KvDType::kFp8}),
    [](const auto& info) {
      return std::string(DTypeName(info.param.dtype)) +
             (info.param.deterministic ? "Deterministic" : "") +
             (info.param.quantize == Quantization::kFp8 ? "Fp8" : "") +
             (info.param.kv_cache == KvDType::kFp8 ? "Fp8Cache" : "");
    });

}  // namespace
}  // namespace lockstep::testing
