#include "model/llama/step_batch.h"

#include <climits>
#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "model/llama/block_tables.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Block size 4, ten blocks. Sequence 0: a chunk of three after two cached tokens; sequence 1: a
// decode at position 4.
class StepBatchTest : public ::testing::Test {
 protected:
  std::string Refusal(const std::function<void(StepBatch&)>& change) {
    StepBatch batch = batch_;
    change(batch);
    const absl::Status status = Check(batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  // Of a stage that has seen no other.
  absl::Status Check(const StepBatch& batch) {
    BlockTables tables(limits_);
    RETURN_IF_ERROR(tables.Write(batch.new_blocks, /*num_blocks=*/10));
    return CheckStepBatch(batch, limits_, tables);
  }

  BatchLimits limits_{
      .max_batched_tokens = 6, .max_num_seqs = 2, .max_model_len = 8, .block_size = 4};
  StepBatch batch_{.token_ids = {5, 6, 7, 8},
                   .token_sources = {-1, -1, -1, 1},
                   .positions = {2, 3, 4, 4},
                   .slot_mapping = {9 * 4 + 2, 9 * 4 + 3, 0, 3 * 4},
                   .query_starts = {0, 3, 4},
                   .context_lens = {5, 5},
                   .table_rows = {1, 0},
                   .new_blocks = {{1, 0, 9}, {1, 1, 0}, {0, 0, 1}, {0, 1, 3}},
                   .logits_rows = {2, 3}};
};

TEST_F(StepBatchTest, ConsistentBatchIsAccepted) {
  EXPECT_TRUE(Check(batch_).ok());
  EXPECT_TRUE(Check(StepBatch{}).ok());
}

TEST_F(StepBatchTest, ContradictionsAreRefusedByName) {
  EXPECT_THAT(Refusal([](StepBatch& b) { b.token_ids.pop_back(); }), HasSubstr("token_ids has 3"));
  EXPECT_THAT(Refusal([](StepBatch& b) {
                b.token_sources = {-1, 0};
              }),
              HasSubstr("token_sources has 2"));
  EXPECT_THAT(Refusal([](StepBatch& b) {
                b.token_sources = {-1, -1, -1, 2};
              }),
              HasSubstr("token_sources[3] is 2"));
  EXPECT_THAT(Refusal([](StepBatch& b) { b.slot_mapping.push_back(0); }),
              HasSubstr("slot_mapping"));
  EXPECT_THAT(Refusal([](StepBatch& b) { b.query_starts = {0, 4}; }), HasSubstr("query_starts"));
  EXPECT_THAT(Refusal([](StepBatch& b) {
                b.query_starts = {0, 0, 4};
              }),
              HasSubstr("query_starts[1]"));
  EXPECT_THAT(Refusal([](StepBatch& b) {
                b.query_starts = {1, 3, 4};
              }),
              HasSubstr("query_starts[0]"));
  EXPECT_THAT(Refusal([](StepBatch& b) {
                b.query_starts = {0, -1, 4};
              }),
              HasSubstr("query_starts[1]"));
  EXPECT_THAT(Refusal([](StepBatch& b) {
                b.query_starts = {0, 3, 5};
              }),
              HasSubstr("query_starts[2]"));
  EXPECT_THAT(Refusal([](StepBatch& b) { b.positions[1] = 4; }), HasSubstr("positions[1] is 4"));
  EXPECT_THAT(Refusal([](StepBatch& b) { b.table_rows.pop_back(); }),
              HasSubstr("table_rows has 1"));
  EXPECT_THAT(Refusal([](StepBatch& b) { b.table_rows = {0, 1}; }), HasSubstr("slot_mapping[0]"));
  // One more block than the row has.
  EXPECT_THAT(Refusal([](StepBatch& b) { b.new_blocks.pop_back(); }),
              HasSubstr("context_lens[1] is 5, which is not between 1 and 4"));
}

TEST_F(StepBatchTest, NumbersOutOfRangeAreRefusedByName) {
  for (const int32_t bad : {-1, 10, INT_MAX, INT_MIN}) {
    EXPECT_THAT(Refusal([&](StepBatch& b) { b.new_blocks[3].block = bad; }),
                HasSubstr("new_blocks[3]"));
    EXPECT_THAT(Refusal([&](StepBatch& b) { b.table_rows[1] = bad; }), HasSubstr("table_rows[1]"));
  }
  for (const int64_t bad : {int64_t{-1}, int64_t{40}, INT64_MAX, INT64_MIN, int64_t{13}}) {
    EXPECT_THAT(Refusal([&](StepBatch& b) { b.slot_mapping[3] = bad; }),
                HasSubstr("slot_mapping[3]"));
  }
  for (const int32_t bad : {0, -1, 9, INT_MAX}) {
    EXPECT_THAT(Refusal([&](StepBatch& b) { b.context_lens[1] = bad; }),
                HasSubstr("context_lens[1]"));
  }
  EXPECT_THAT(Refusal([](StepBatch& b) { b.logits_rows = {3, 2}; }), HasSubstr("logits_rows[1]"));
  EXPECT_THAT(Refusal([](StepBatch& b) { b.logits_rows = {4}; }), HasSubstr("logits_rows[0] is 4"));
  EXPECT_THAT(Refusal([](StepBatch& b) { b.logits_rows = {-1}; }), HasSubstr("logits_rows[0]"));
}

TEST_F(StepBatchTest, LimitsHold) {
  limits_.max_batched_tokens = 3;
  EXPECT_THAT(Refusal([](StepBatch&) {}), HasSubstr("4 tokens"));
  limits_.max_batched_tokens = 4;
  limits_.max_num_seqs = 1;
  EXPECT_THAT(Refusal([](StepBatch& b) { b.new_blocks.clear(); }), HasSubstr("2 sequences"));
  limits_.max_num_seqs = 2;
  limits_.max_model_len = 4;
  EXPECT_THAT(Refusal([](StepBatch&) {}), HasSubstr("for 1 blocks each"));
  limits_.max_model_len = 5;
  batch_.positions[3] = 5;
  batch_.context_lens[1] = 6;
  EXPECT_THAT(Refusal([](StepBatch&) {}), HasSubstr("context_lens[1] is 6"));
}

}  // namespace
}  // namespace lockstep
