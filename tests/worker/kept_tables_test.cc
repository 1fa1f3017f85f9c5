// Block tables that stay on the device from step to step are what every step would find had they
// been brought whole: over any plans, in steps as they come and recorded ones, on CPUs and on the
// emulation of CUDA.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "model/llama/uniform_batch.h"
#include "runtime/worker/slots.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/worker/random_plans.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kNumBlocks = 30;
constexpr BatchLimits kLimits = {
    .max_batched_tokens = 40, .max_num_seqs = 5, .max_model_len = 63, .block_size = 8};

struct Body {
  const char* name;
  bool is_cuda;
  bool keeps_steps;
};

std::unique_ptr<Backend> MakeBackend(const Body& body) {
  if (!body.is_cuda) return CpuBackends(1)();
  return cuda::CudaBackend::Create(
             {.compute = DType::kF32, .deterministic = true, .keep_steps = body.keeps_steps})
      .value();
}

SlotTableOptions SlotsOf(const BatchLimits& limits, int64_t num_blocks, int64_t vocab_size) {
  return {.limits = limits,
          .num_blocks = num_blocks,
          .vocab_size = vocab_size,
          .is_first_stage = true,
          .is_last_stage = true,
          .vocab = {.begin = 0, .end = vocab_size}};
}

class KeptTablesTest : public ::testing::TestWithParam<Body> {};

// ---- on the device ----

// What a backend has there.
std::vector<int32_t> TablesOn(Backend& backend, const DeviceBatch& batch) {
  std::vector<int32_t> tables(
      static_cast<size_t>(kLimits.max_num_seqs * batch.index().max_blocks_per_seq));
  backend.CopyToHost(tables.data(), batch.index().block_tables,
                     std::ssize(tables) * int64_t{sizeof(int32_t)});
  return tables;
}

KvCacheView CacheShape() {
  KvCacheView cache;
  cache.num_kv_heads = 2;
  cache.block_size = kLimits.block_size;
  cache.head_dim = 8;
  return cache;
}

TEST_P(KeptTablesTest, StepsFindTheWholeTables) {
  const std::unique_ptr<Backend> backend = MakeBackend(GetParam());
  DeviceBatch device = DeviceBatch::Allocate(*backend, kLimits, 4, CacheShape()).value();
  for (const uint64_t seed : {1, 2, 3}) {  // the next one's slots begin where these ended
    RandomPlans plans(kLimits, kNumBlocks, 100, seed);
    SlotTable slots(SlotsOf(kLimits, kNumBlocks, 100));
    for (int step = 0; step < 300; ++step) {
      ASSERT_TRUE(slots.Apply(plans.Next()).ok());
      for (const SlotRef& ref : slots.sampled()) slots.AppendSampled(ref, plans.Token());
      slots.FillTokenIds();
      const StepBatch& batch = slots.batch();
      ASSERT_TRUE(device.Accept(batch, kNumBlocks).ok());
      device.CopyFrom(batch, *backend, AttentionCut::kOnce);
      const std::vector<int32_t> tables = TablesOn(*backend, device);
      for (size_t i = 0; i < plans.slots().size(); ++i) {
        const int64_t row = batch.table_rows[i] * device.index().max_blocks_per_seq;
        const std::vector<int32_t>& want = plans.BlocksOf(plans.slots()[i]);
        const auto begin = tables.begin() + row;
        ASSERT_EQ(std::vector<int32_t>(begin, begin + std::ssize(want)), want)
            << "step " << step << ", slot " << plans.slots()[i];
      }
    }
  }
}

// More than are sent together.
TEST_P(KeptTablesTest, AllTablesAtOnce) {
  const BatchLimits limits = {
      .max_batched_tokens = 8, .max_num_seqs = 5, .max_model_len = 10000, .block_size = 1};
  ASSERT_GT(limits.max_num_seqs * limits.max_model_len, 3 * BlockTables::kUsualChanges);
  const std::unique_ptr<Backend> backend = MakeBackend(GetParam());
  KvCacheView cache = CacheShape();
  cache.block_size = 1;
  DeviceBatch device = DeviceBatch::Allocate(*backend, limits, 4, cache).value();
  for (const int32_t factor : {7, 11}) {
    StepBatch batch = MakeUniformBatch({.num_seqs = limits.max_num_seqs,
                                        .context = limits.max_model_len,
                                        .new_tokens = 1,
                                        .block_size = 1,
                                        .vocab_size = 100});
    const auto num_blocks = static_cast<int32_t>(batch.new_blocks.size());
    const auto other = [&](int64_t block) { return block * factor % num_blocks; };
    for (NewBlock& block : batch.new_blocks) block.block = static_cast<int32_t>(other(block.block));
    for (int64_t& slot : batch.slot_mapping) slot = other(slot);
    ASSERT_TRUE(device.Accept(batch, num_blocks).ok());
    device.CopyFrom(batch, *backend, AttentionCut::kOnce);
    std::vector<int32_t> got(static_cast<size_t>(num_blocks));
    backend->CopyToHost(got.data(), device.index().block_tables,
                        num_blocks * int64_t{sizeof(int32_t)});
    for (int64_t i = 0; i < num_blocks; ++i) ASSERT_EQ(got[static_cast<size_t>(i)], other(i));
  }
}

// ---- in steps ----

// The same step for a stage that has seen none.
StepBatch WithWholeTables(const StepBatch& batch, const RandomPlans& plans) {
  StepBatch whole = batch;
  whole.table_rows.clear();
  whole.new_blocks.clear();
  for (const uint32_t slot : plans.slots()) AddBlockTable(plans.BlocksOf(slot), whole);
  return whole;
}

// What contradicts itself, by new blocks or behind them.
StepBatch Spoilt(const StepBatch& batch, RandomPlans& plans) {
  StepBatch spoilt = batch;
  for (int32_t row = 0; row < kLimits.max_num_seqs; ++row) {
    if (plans.Below(2) == 0) spoilt.new_blocks.push_back({row, 0, plans.Below(kNumBlocks)});
  }
  if (plans.Below(2) == 0) {
    spoilt.new_blocks.push_back({plans.Below(kLimits.max_num_seqs), 0, -1});
  } else {
    spoilt.context_lens.back() = static_cast<int32_t>(kLimits.max_model_len + 1);
  }
  return spoilt;
}

// Two stages of one model: one's tables are kept, the other's are brought whole by every step.
class TwoStages {
 public:
  explicit TwoStages(const Body& body) : kept_(*this, body), whole_(*this, body) {}

  void AllocateKvCaches(int64_t num_blocks) {
    for (const Stage* one : {&kept_, &whole_}) {
      ASSERT_TRUE(one->stage->AllocateKvCache(num_blocks).ok());
      ASSERT_TRUE(one->stage->WarmUp().ok());
    }
  }
  void Run(int num_steps, int64_t num_blocks, uint64_t seed) {
    RandomPlans plans(kLimits, num_blocks, vocab_size(), seed);
    SlotTable slots(SlotsOf(kLimits, num_blocks, vocab_size()));
    for (int step = 0; step < num_steps; ++step) {
      ASSERT_TRUE(slots.Apply(plans.Next()).ok());
      slots.FillTokenIds();
      const StepBatch& batch = slots.batch();
      if (plans.Below(3) == 0) {
        EXPECT_TRUE(absl::IsInvalidArgument(kept_.stage->Forward(Spoilt(batch, plans))));
      }
      ASSERT_TRUE(whole_.stage->Forward(WithWholeTables(batch, plans)).ok());
      ASSERT_TRUE(kept_.stage->Forward(batch).ok());
      // Some steps are issued before those before them are done.
      if (plans.Below(2) == 0) Compare(std::ssize(batch.logits_rows), step);
      for (const SlotRef& ref : slots.sampled()) slots.AppendSampled(ref, plans.Token());
    }
  }
  int64_t num_compared() const { return num_compared_; }
  int64_t num_layers_issued() const { return num_layers_issued_; }

 private:
  struct Stage {
    Stage(TwoStages& both, const Body& body) : backend(MakeBackend(body)) {
      StageOptions options;
      options.limits = kLimits;
      options.on_progress = [&both] { ++both.num_layers_issued_; };
      auto loaded = LlamaStage::Load(both.model_.checkpoint(), *ProcessGrid::Create(1, 1), 0,
                                     *backend, groups, options, nullptr);
      EXPECT_TRUE(loaded.ok()) << loaded.status();
      stage = *std::move(loaded);
    }
    std::unique_ptr<Backend> backend;
    RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
    std::unique_ptr<LlamaStage> stage;
  };

  static ModelConfig Config() {
    ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
    config.num_layers = 2;
    return config;
  }
  int32_t vocab_size() const {
    return static_cast<int32_t>(model_.checkpoint().config().vocab_size);
  }

  void Compare(int64_t num_rows, int step) {
    const auto logits_of = [num_rows](const Stage& one) {
      const auto logits = one.stage->Logits(0, num_rows);
      EXPECT_TRUE(logits.ok()) << logits.status();
      return std::vector<float>(*logits, *logits + num_rows * one.stage->shape().vocab.size());
    };
    const std::vector<float> want = logits_of(whole_);
    EXPECT_EQ(logits_of(kept_), want) << "step " << step;
    num_compared_ += want.empty() ? 0 : 1;
  }

  const TemporaryModel model_{Config(), DType::kF32};
  int64_t num_layers_issued_ = 0;
  int64_t num_compared_ = 0;
  Stage kept_;
  Stage whole_;
};

TEST_P(KeptTablesTest, StepsComputeWhatTheyWouldWithWholeTables) {
  const Body body = GetParam();
  const int64_t early = cuda_emulation::NumKernelsBegunEarly();
  TwoStages stages(body);
  stages.AllocateKvCaches(kNumBlocks);
  const int64_t issued = stages.num_layers_issued();
  stages.Run(/*num_steps=*/40, kNumBlocks, /*seed=*/1);
  // Of steps in two stages with two layers of two halves each.
  if (body.keeps_steps) {
    EXPECT_LT(stages.num_layers_issued() - issued, 40 * 2 * 2 * 2 / 2);
  }
  stages.Run(20, kNumBlocks, 2);  // another job's plans, over the same stage
  stages.AllocateKvCaches(2 * kNumBlocks);
  stages.Run(20, 2 * kNumBlocks, 3);
  stages.AllocateKvCaches(kNumBlocks / 2);
  stages.Run(20, kNumBlocks / 2, 4);
  EXPECT_GT(stages.num_compared(), 30);
  EXPECT_EQ(cuda_emulation::NumKernelsBegunEarly() > early, body.is_cuda);
}

// Nobody brings block tables again: the cache that they named is gone.
TEST_P(KeptTablesTest, AStepCannotGoOnOverAnotherCache) {
  const std::unique_ptr<Backend> backend = MakeBackend(GetParam());
  const TemporaryModel model(SmallConfig(2), DType::kF32);
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  StageOptions options;
  options.limits = kLimits;
  auto stage = LlamaStage::Load(model.checkpoint(), *ProcessGrid::Create(1, 1), 0, *backend, groups,
                                options, nullptr);
  ASSERT_TRUE(stage.ok()) << stage.status();
  ASSERT_TRUE((*stage)->AllocateKvCache(kNumBlocks).ok());
  StepBatch batch = MakeUniformBatch({1, 20, 1, kLimits.block_size, 100});
  const StepBatch tables = TakeNewBlocks(batch);
  EXPECT_TRUE(absl::IsInvalidArgument((*stage)->Forward(batch)));
  ASSERT_TRUE((*stage)->Forward(tables).ok());
  ASSERT_TRUE((*stage)->Forward(batch).ok());
  ASSERT_TRUE((*stage)->AllocateKvCache(kNumBlocks).ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*stage)->Forward(batch)));
  ASSERT_TRUE((*stage)->Forward(tables).ok());
  ASSERT_TRUE((*stage)->WarmUp().ok());
  if (backend->KeepsSteps()) {
    EXPECT_TRUE(absl::IsInvalidArgument((*stage)->Forward(batch)));
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies, KeptTablesTest,
                         ::testing::Values(Body{"cpu", false, false}, Body{"cuda", true, false},
                                           Body{"cudaKeepingSteps", true, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- what a step brings ----

// Counts what is copied.
class CountingBackend final : public cpu::CpuBackend {
 public:
  CountingBackend() : CpuBackend(**cpu::FindKernels("auto"), /*num_threads=*/1) {}
  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    num_bytes += bytes;
    CpuBackend::CopyToDevice(device, host, bytes);
  }
  int64_t num_bytes = 0;
};

TEST(UploadTest, ADecodeBringsItsNewBlocksAlone) {
  CountingBackend backend;
  const BatchLimits limits = {
      .max_batched_tokens = 512, .max_num_seqs = 256, .max_model_len = 8200, .block_size = 16};
  DeviceBatch device = DeviceBatch::Allocate(backend, limits, 4, CacheShape()).value();
  const auto bytes_of = [&](const StepBatch& batch) {
    EXPECT_TRUE(device.Accept(batch, INT32_MAX).ok());
    const int64_t before = backend.num_bytes;
    device.CopyFrom(batch, backend, AttentionCut::kOnce);
    return backend.num_bytes - before;
  };
  const auto decodes = [&](int64_t context) {
    StepBatch batch = MakeUniformBatch({256, context, 1, 16, 100});
    bytes_of(TakeNewBlocks(batch));
    return batch;
  };
  const int64_t least = bytes_of(decodes(1));
  StepBatch batch = decodes(8192);
  EXPECT_EQ(bytes_of(batch), least) << "contexts of 512 blocks each";
  EXPECT_LT(least, 256 * 40);
  for (const int32_t row : {200, 3}) batch.new_blocks.push_back({row, 512, 1 << 20});
  EXPECT_EQ(bytes_of(batch), least + 64);
  batch.new_blocks.clear();
  EXPECT_EQ(bytes_of(batch), least);
}

}  // namespace
}  // namespace lockstep::testing
