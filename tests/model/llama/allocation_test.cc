// Forward and Logits allocate nothing once warm: this binary counts every operator new.
#include "gtest/gtest.h"
#include "model/llama/llama_stage.h"
#include "tests/kernels/counting_new.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

// A prefill of five tokens and a decode.
StepBatch MixedBatch() {
  StepBatch batch = {.token_ids = {1, 2, 3, 4, 5, 6},
                     .token_sources = {},
                     .positions = {0, 1, 2, 3, 4, 7},
                     .slot_mapping = {8, 9, 10, 11, 4, 15},
                     .query_starts = {0, 5, 6},
                     .context_lens = {5, 8},
                     .table_rows = {},
                     .new_blocks = {},
                     .logits_rows = {4, 5}};
  AddBlockTable(std::vector<int32_t>{2, 1}, batch);
  AddBlockTable(std::vector<int32_t>{0, 3}, batch);
  return batch;
}

TEST(AllocationTest, WarmForwardAllocatesNothing) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TemporaryModel model(SmallConfig(/*num_kv_heads=*/4), dtype);
    const std::unique_ptr<Backend> backend = CpuBackends(2)();
    const ProcessGrid grid = *ProcessGrid::Create(1, 1);
    RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
    StageOptions options;
    options.limits = {
        .max_batched_tokens = 8, .max_num_seqs = 2, .max_model_len = 8, .block_size = 4};
    auto stage = LlamaStage::Load(model.checkpoint(), grid, 0, *backend, groups, options, nullptr);
    ASSERT_TRUE(stage.ok()) << stage.status();
    ASSERT_TRUE((*stage)->AllocateKvCache(4).ok());
    const StepBatch batch = MixedBatch();
    int64_t before = 0;
    for (int step = 0; step < 5; ++step) {
      if (step == 2) before = NumAllocations();
      ASSERT_TRUE((*stage)->Forward(batch).ok());
      ASSERT_TRUE((*stage)->Logits(0, 2).ok());
    }
    EXPECT_EQ(NumAllocations() - before, 0) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace lockstep::testing
