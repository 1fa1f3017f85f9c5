// What a rank reads of a checkpoint, and what it refuses.
#include <atomic>
#include <mutex>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "model/llama/llama_stage.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

const ModelConfig kConfig = SmallConfig(/*num_kv_heads=*/4);

class LoadingTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<LlamaStage>> Load(const Checkpoint& checkpoint, int tp, int pp,
                                                   int rank) {
    const ProcessGrid grid = *ProcessGrid::Create(tp, pp);
    groups_ = MakeInProcessGroups(grid);
    return LlamaStage::Load(checkpoint, grid, rank, *backend_, groups_[0], options_, progress_);
  }
  LoadStats StatsOf(const Checkpoint& checkpoint, int tp, int pp, int rank) {
    const auto stage = Load(checkpoint, tp, pp, rank);
    EXPECT_TRUE(stage.ok()) << stage.status();
    return stage.ok() ? (*stage)->load_stats() : LoadStats{};
  }
  std::string Refusal(const Checkpoint& checkpoint, int tp = 1, int pp = 1) {
    const auto stage = Load(checkpoint, tp, pp, 0);
    EXPECT_EQ(stage.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(stage.status().message());
  }

  std::unique_ptr<Backend> backend_ = MakeReferenceBackend();
  std::vector<RankGroups> groups_;
  StageOptions options_;
  LoadProgress progress_;
};

// Every byte belongs to one rank, but norms to all of a stage, and a tied table to the first stage
// and the last.
TEST_F(LoadingTest, ShardsSumToTheWhole) {
  for (const bool tied : {false, true}) {
    ModelConfig config = kConfig;
    config.tie_word_embeddings = tied;
    const TemporaryModel model(config, DType::kBF16);
    const int64_t norm_bytes = (2 * config.num_layers + 1) * config.hidden_size * 2;
    const int64_t table_bytes = config.vocab_size * config.hidden_size * 2;
    for (const auto& [tp, pp] : {std::pair(1, 1), {2, 1}, {4, 1}, {1, 3}, {2, 2}, {4, 3}}) {
      SCOPED_TRACE(::testing::Message() << "tp " << tp << " pp " << pp << (tied ? " tied" : ""));
      int64_t sum = 0;
      for (int rank = 0; rank < tp * pp; ++rank) {
        const int64_t before = model.checkpoint().bytes_read();
        const LoadStats stats = StatsOf(model.checkpoint(), tp, pp, rank);
        EXPECT_EQ(stats.loaded_bytes, model.checkpoint().bytes_read() - before);
        EXPECT_LE(static_cast<double>(stats.loaded_bytes),
                  1.05 * static_cast<double>(stats.shard_bytes));
        EXPECT_EQ(stats.pinned_bytes, 0);  // of no use to a CPU
        sum += stats.shard_bytes;
      }
      const int64_t again = (tp - 1) * norm_bytes + (tied && pp > 1 ? table_bytes : 0);
      EXPECT_EQ(sum, model.checkpoint().total_bytes() + again);
    }
  }
}

TEST_F(LoadingTest, WidenedHalfPrecisionTakesFourBytesAndBf16Two) {
  const TemporaryModel half(kConfig, DType::kF16);
  const LoadStats wide = StatsOf(half.checkpoint(), 1, 1, 0);
  EXPECT_GE(wide.weight_bytes, 2 * wide.shard_bytes);
  options_.weights = StageOptions::Weights::kBF16;
  const LoadStats narrow = StatsOf(half.checkpoint(), 1, 1, 0);
  EXPECT_LT(narrow.weight_bytes, wide.weight_bytes * 6 / 10);
}

TEST_F(LoadingTest, F16IsRefusedWhereItIsNotHeld) {
  options_.weights = StageOptions::Weights::kF16;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const TemporaryModel model(kConfig, dtype);
    EXPECT_THAT(Refusal(model.checkpoint()), HasSubstr("--dtype f16 is for GPUs"));
  }
}

TEST(HeldDTypeTest, AutoKeepsWhatIsStoredWhereItCan) {
  EXPECT_EQ(HeldDType(WeightDType::kAuto, DType::kBF16, true), DType::kBF16);
  EXPECT_EQ(HeldDType(WeightDType::kAuto, DType::kF16, true), DType::kF16);
  EXPECT_EQ(HeldDType(WeightDType::kAuto, DType::kF16, false), DType::kF32);
  EXPECT_EQ(HeldDType(WeightDType::kBF16, DType::kF16, true), DType::kBF16);
  EXPECT_EQ(HeldDType(WeightDType::kF16, DType::kF32, true), DType::kF16);
}

TEST_F(LoadingTest, ProgressEndsAtTheTotal) {
  const TemporaryModel model(kConfig, DType::kF32);
  std::mutex mutex;
  int64_t furthest = 0, total = 0;
  progress_ = [&](int64_t bytes_done, int64_t bytes_total) {
    const std::lock_guard lock(mutex);
    furthest = std::max(furthest, bytes_done);
    total = bytes_total;
  };
  options_.num_load_threads = 3;
  const LoadStats stats = StatsOf(model.checkpoint(), 2, 1, 1);
  EXPECT_EQ(furthest, stats.loaded_bytes);
  EXPECT_EQ(total, stats.shard_bytes);
}

TEST_F(LoadingTest, KvBlockHoldsKeysAndValuesOfTheRanksLayersAndHeads) {
  const TemporaryModel model(kConfig, DType::kF32);
  options_.limits.block_size = 4;
  const auto stage = Load(model.checkpoint(), 2, 3, 0);  // one layer, two KV heads
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_EQ((*stage)->kv_block_bytes(), 2 * 1 * 2 * 8 * 4 * 4);
  EXPECT_EQ((*stage)->AllocateKvCache(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*stage)->AllocateKvCache(INT64_MAX).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE((*stage)->AllocateKvCache(3).ok());
}

TEST_F(LoadingTest, EveryMissingTensorIsNamed) {
  const std::vector<WrittenTensor> all = TemporaryModel::TensorsOf(kConfig);
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<WrittenTensor> tensors = all;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    const TemporaryModel model(kConfig, DType::kBF16, tensors);
    EXPECT_THAT(Refusal(model.checkpoint()), HasSubstr(all[i].name));
  }
}

TEST_F(LoadingTest, EveryWrongShapeIsNamedWithWhatBelongs) {
  const std::vector<WrittenTensor> all = TemporaryModel::TensorsOf(kConfig);
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<WrittenTensor> tensors = all;
    tensors[i].shape.back() += 1;
    const TemporaryModel model(kConfig, DType::kBF16, tensors);
    const std::string refusal = Refusal(model.checkpoint());
    EXPECT_THAT(refusal, HasSubstr(all[i].name));
    EXPECT_THAT(refusal, HasSubstr(std::to_string(tensors[i].shape.back()) + "]"));
    EXPECT_THAT(refusal, HasSubstr(std::to_string(all[i].shape.back()) + "]"));
  }
}

TEST_F(LoadingTest, TransposedMatrixIsRefused) {
  std::vector<WrittenTensor> tensors = TemporaryModel::TensorsOf(kConfig);
  for (WrittenTensor& tensor : tensors) {
    if (tensor.name == "model.layers.1.mlp.down_proj.weight")
      std::swap(tensor.shape[0], tensor.shape[1]);
  }
  const TemporaryModel model(kConfig, DType::kBF16, tensors);
  EXPECT_THAT(Refusal(model.checkpoint()), HasSubstr("model.layers.1.mlp.down_proj.weight"));
}

TEST_F(LoadingTest, ImpossibleLayoutsAndLimitsAreRefused) {
  const TemporaryModel model(kConfig, DType::kBF16);
  EXPECT_THAT(Refusal(model.checkpoint(), 3, 1), HasSubstr("tp 3 does not divide num_heads 8"));
  EXPECT_THAT(Refusal(model.checkpoint(), 1, 4), HasSubstr("pp 4"));
  options_.limits.block_size = 0;
  EXPECT_THAT(Refusal(model.checkpoint()), HasSubstr("block_size is 0"));
  options_.limits = {.max_batched_tokens = -5};
  EXPECT_THAT(Refusal(model.checkpoint()), HasSubstr("max_batched_tokens is -5"));
}

}  // namespace
}  // namespace lockstep::testing
