// A rank's model on a GPU, which is the emulation's plugin: what the KV cache gets of its memory.
#include "runtime/worker/rank_model.h"

#include <array>
#include <cstdlib>

#include "deploy/plan/catalog.h"
#include "deploy/plan/serve_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class CudaRankModelTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("LOCKSTEP_CUDA_PLUGIN", LOCKSTEP_EMULATED_PLUGIN, /*overwrite=*/1);
    setenv("LOCKSTEP_CUDA_MEMORY_GIB", "0.5", 1);
  }
  static ModelConfig OneLayer() {
    ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
    config.num_layers = 1;
    return config;
  }
  CudaRankModelTest() : files_(OneLayer(), DType::kBF16) {
    options_.model = files_.directory();
    options_.stage.limits = {
        .max_batched_tokens = 16, .max_num_seqs = 1, .max_model_len = 32, .block_size = 16};
    options_.device.gpu = GpuPlace{};
  }
  // Not rehearsed yet.
  std::unique_ptr<RankModel> Load() {
    auto model = RankModel::Open(options_, progress_);
    EXPECT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->Join(groups_), absl::OkStatus());
    EXPECT_EQ((*model)->Load(nullptr), absl::OkStatus());
    return *std::move(model);
  }
  // A decode whose token lies in that block.
  static absl::Status Decode(RankModel& model, int32_t block) {
    StepBatch batch;
    batch.token_ids = {1};
    batch.positions = {0};
    batch.slot_mapping = {int64_t{block} * 16};
    batch.query_starts = {0, 1};
    batch.context_lens = {1};
    AddBlockTable(std::array{block}, batch);
    batch.logits_rows = {0};
    return model.Calls().forward(batch);
  }

  const TemporaryModel files_;
  WorkerOptions options_;
  RankProgress progress_;
  RankGroups groups_{MakeSelfCommunicator(), MakeSelfCommunicator()};
};

// What ranks must have in common is how numbers are held, whichever flags led to that.
TEST_F(CudaRankModelTest, ItsIdentityTellsHowItComputes) {
  const auto identity = [this] {
    const auto model = RankModel::Open(options_, progress_);
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->Identity();
  };
  EXPECT_EQ(identity().device, "cuda");
  EXPECT_EQ(identity().dtype, "bf16");
  EXPECT_EQ(identity().deterministic, "off");
  options_.device.deterministic = true;
  EXPECT_EQ(identity().deterministic, "on");
  options_.stage.weights = WeightDType::kF16;
  EXPECT_EQ(identity().dtype, "f16");
  EXPECT_EQ(identity().fp8_weights, "none");
  options_.device.gpu.reset();
  options_.stage.weights = WeightDType::kAuto;
  options_.device.deterministic = false;
  EXPECT_EQ(identity().device, "cpu");
  EXPECT_EQ(identity().deterministic, "on");
  const auto loaded = Load();
  EXPECT_TRUE(loaded->Identity().is_loaded);
}

TEST_F(CudaRankModelTest, ARehearsalTellsWhatIsLeft) {
  const auto model = Load();
  EXPECT_TRUE(model->MustRehearse());
  EXPECT_EQ(model->max_kv_blocks(), 0);
  ASSERT_EQ(model->Rehearse(), absl::OkStatus());
  EXPECT_FALSE(model->MustRehearse());
  const DeviceMemory& memory = model->memory();
  EXPECT_EQ(memory.total_bytes, int64_t{1} << 29);
  EXPECT_GT(memory.held_bytes, model->load_stats().weight_bytes);
  EXPECT_EQ(memory.left_bytes, memory.budget_bytes - memory.held_bytes - memory.other_bytes);
  EXPECT_EQ(model->most_kv_blocks(), memory.left_bytes / model->kv_block_bytes());
  EXPECT_LT(model->max_kv_blocks(), model->most_kv_blocks());
  EXPECT_GT(model->max_kv_blocks(), model->most_kv_blocks() * 9 / 10);

  const auto too_many = static_cast<int32_t>(model->most_kv_blocks()) + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(model->AllocateKvCache(too_many)));
  ASSERT_EQ(model->AllocateKvCache(model->most_kv_blocks()), absl::OkStatus());
  EXPECT_GE(model->device().backend().Memory().left_bytes, 0);
  EXPECT_EQ(Decode(*model, too_many - 2), absl::OkStatus());
}

// But for attention's lists, of which planners count none; aligned as DeviceBatch does.
TEST_F(CudaRankModelTest, PlansCountWhatItTakesBesideWeights) {
  const BatchLimits limits = options_.stage.limits;
  auto opened = RankModel::Open(options_, progress_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const int64_t before = (*opened)->device().backend().Memory().held_bytes;
  const auto model = Load();
  ASSERT_EQ(model->Rehearse(), absl::OkStatus());
  KvCacheView cache;
  cache.dtype = DType::kBF16;
  cache.num_kv_heads = 4;
  cache.block_size = limits.block_size;
  cache.head_dim = 8;
  const int64_t lists = model->device().backend().ReserveAttentionWork(
      {limits.max_batched_tokens, limits.max_num_seqs + 1, limits.max_model_len}, 8, cache);

  const auto planned = plan::LoadModel(files_.directory().string());
  ASSERT_TRUE(planned.ok()) << planned.status();
  plan::MemoryOptions memory;
  memory.max_batched_tokens = limits.max_batched_tokens;
  memory.max_num_seqs = limits.max_num_seqs;
  memory.max_model_len = limits.max_model_len;
  const auto bf16 = plan::FindWeightFormat("bf16");
  const auto kv = plan::FindKvFormat("bf16");
  const int64_t buffers =
      MemoryOfServe({planned->architecture, *bf16, *kv, {}, memory}, plan::Layout{}, 0).buffers;
  EXPECT_EQ(buffers + (lists + 63) / 64 * 64,
            model->memory().held_bytes - before - model->load_stats().weight_bytes);
}

// Because another rank must; the cache is as large as before then.
TEST_F(CudaRankModelTest, ARankThatServedRehearsesAgain) {
  const auto model = Load();
  ASSERT_EQ(model->Rehearse(), absl::OkStatus());
  const int64_t blocks = model->max_kv_blocks();
  const int64_t left = model->memory().left_bytes;
  ASSERT_EQ(model->AllocateKvCache(blocks), absl::OkStatus());
  ASSERT_EQ(model->Join(groups_), absl::OkStatus());
  ASSERT_EQ(model->Rehearse(), absl::OkStatus());
  EXPECT_EQ(model->memory().left_bytes, left);
  EXPECT_EQ(model->max_kv_blocks(), blocks);
  ASSERT_EQ(model->AllocateKvCache(blocks), absl::OkStatus());
  EXPECT_EQ(model->num_kv_blocks(), blocks);
  EXPECT_EQ(Decode(*model, static_cast<int32_t>(blocks) - 1), absl::OkStatus());
}

TEST_F(CudaRankModelTest, WhatIsAskedForMustFitBesideAllElse) {
  options_.num_kv_blocks = 100;
  const auto few = Load();
  ASSERT_EQ(few->Rehearse(), absl::OkStatus());
  EXPECT_EQ(few->max_kv_blocks(), 100);
  EXPECT_EQ(few->most_kv_blocks(), 100);

  options_.num_kv_blocks = (int64_t{1} << 29) / few->kv_block_bytes();
  const auto many = Load();
  const absl::Status refused = many->Rehearse();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("lower --num-kv-blocks to "));
}

}  // namespace
}  // namespace lockstep::testing
