// What of a step is computed for tokens whose logits nobody wants.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;

// Notes how many rows each product has.
class NotingBackend : public cpu::CpuBackend {
 public:
  explicit NotingBackend(std::vector<int64_t>& rows)
      : CpuBackend(**cpu::FindKernels("auto"), /*num_threads=*/1), rows_(rows) {}

  void Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) override {
    rows_.push_back(num_tokens);
    CpuBackend::Linear(weight, x, num_tokens, y);
  }
  void Attention(const AttentionArgs& args) override {
    ++num_attentions_;
    CpuBackend::Attention(args);
  }
  int num_attentions() const { return num_attentions_; }

 private:
  std::vector<int64_t>& rows_;
  int num_attentions_ = 0;
};

class LogitsRowsTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 3;

  void SetUp() override {
    ASSERT_EQ(model_.checkpoint().config().num_layers, kLayers);
    StageOptions options;
    options.limits = {
        .max_batched_tokens = 16, .max_num_seqs = 2, .max_model_len = 16, .block_size = 4};
    auto stage = LlamaStage::Load(model_.checkpoint(), *ProcessGrid::Create(1, 1), 0, backend_,
                                  groups_, options, nullptr);
    ASSERT_TRUE(stage.ok()) << stage.status();
    stage_ = *std::move(stage);
    ASSERT_TRUE(stage_->AllocateKvCache(8).ok());
  }

  // Of a prompt of five tokens beside one of three.
  void Run(const std::vector<int32_t>& logits_rows) {
    StepBatch batch = {.token_ids = {1, 2, 3, 4, 5, 6, 7, 8},
                       .token_sources = {},
                       .positions = {0, 1, 2, 3, 4, 0, 1, 2},
                       .slot_mapping = {8, 9, 10, 11, 4, 0, 1, 2},
                       .query_starts = {0, 5, 8},
                       .context_lens = {5, 3},
                       .table_rows = {},
                       .new_blocks = {},
                       .logits_rows = logits_rows};
    AddBlockTable(std::vector<int32_t>{2, 1}, batch);
    AddBlockTable(std::vector<int32_t>{0}, batch);
    rows_.clear();
    const absl::Status status = stage_->Forward(batch);
    EXPECT_TRUE(status.ok()) << status;
  }

  const TemporaryModel model_{SmallConfig(/*num_kv_heads=*/2), DType::kF32};
  std::vector<int64_t> rows_;  // of qkv, attention's output, gate/up and down, layer after layer
  NotingBackend backend_{rows_};
  RankGroups groups_{MakeSelfCommunicator(), MakeSelfCommunicator()};
  std::unique_ptr<LlamaStage> stage_;
};

TEST_F(LogitsRowsTest, OthersEndWithTheLastLayersKeysAndValues) {
  Run({4, 7});
  EXPECT_THAT(rows_, ElementsAre(8, 8, 8, 8, 8, 8, 8, 8, 8, 2, 2, 2));
  EXPECT_EQ(backend_.num_attentions(), kLayers);
}

TEST_F(LogitsRowsTest, WithoutAnyTheLastLayerHasNoAttention) {
  Run({});
  EXPECT_THAT(rows_, ElementsAre(8, 8, 8, 8, 8, 8, 8, 8, 8));
  EXPECT_EQ(backend_.num_attentions(), kLayers - 1);
}

TEST_F(LogitsRowsTest, AllAreComputedWhereAllAreWanted) {
  Run({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_THAT(rows_, ElementsAre(8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8));
}

}  // namespace
}  // namespace lockstep::testing
