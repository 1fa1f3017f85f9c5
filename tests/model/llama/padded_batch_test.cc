#include "model/llama/padded_batch.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

const BatchLimits kLimits{
    .max_batched_tokens = 64, .max_num_seqs = 48, .max_model_len = 4096, .block_size = 16};

StepBatch Decodes(const std::vector<int32_t>& context_lens) {
  StepBatch batch;
  batch.query_starts = {0};
  for (const int32_t context : context_lens) {
    const auto row = static_cast<int32_t>(batch.positions.size());
    batch.token_ids.push_back(100 + row);
    batch.positions.push_back(context - 1);
    batch.slot_mapping.push_back(16 * (1 + row) + (context - 1) % 16);
    batch.context_lens.push_back(context);
    batch.query_starts.push_back(row + 1);
    batch.logits_rows.push_back(row);
  }
  return batch;
}

TEST(PaddedShapeTest, RoundsUpAndStaysWithinTheLimits) {
  const auto shape_of = [](size_t num_seqs, int32_t context) {
    return *PaddedShapeFor(Decodes(std::vector<int32_t>(num_seqs, context)), kLimits);
  };
  EXPECT_EQ(shape_of(1, 1).num_tokens, 1);
  EXPECT_EQ(shape_of(3, 1).num_tokens, 4);
  EXPECT_EQ(shape_of(5, 1).num_tokens, 8);
  EXPECT_EQ(shape_of(41, 1).num_tokens, 48);
  EXPECT_EQ(shape_of(1, 1).max_context_len, 256);
  EXPECT_EQ(shape_of(1, 257).max_context_len, 320);
  EXPECT_EQ(shape_of(1, 512).max_context_len, 512);
  EXPECT_EQ(shape_of(1, 513).max_context_len, 640);
  EXPECT_EQ(shape_of(1, 4096).max_context_len, 4096);
  EXPECT_EQ(shape_of(1, 513).max_blocks_per_seq, 40);
  for (int32_t context = 1; context <= 4096; ++context) {
    const int64_t padded = shape_of(1, context).max_context_len;
    ASSERT_GE(padded, context);
    if (context > 256) {
      ASSERT_LT(padded, context * 5 / 4 + 1);
    }
  }
}

TEST(PaddedShapeTest, BatchesWithChunksOrSomeLogitsAreLeftAlone) {
  StepBatch chunk = Decodes({5, 9});
  chunk.token_ids.push_back(1);
  chunk.positions.push_back(9);
  chunk.slot_mapping.push_back(0);
  EXPECT_FALSE(PaddedShapeFor(chunk, kLimits).has_value());
  StepBatch some = Decodes({5, 9});
  some.logits_rows.pop_back();
  EXPECT_FALSE(PaddedShapeFor(some, kLimits).has_value());
  EXPECT_FALSE(PaddedShapeFor(StepBatch{}, kLimits).has_value());
}

TEST(PaddedShapeTest, EveryShapeHasAKeyOfItsOwn) {
  std::set<uint64_t> keys;
  std::set<std::tuple<int64_t, int64_t, bool>> shapes;
  for (size_t num_seqs = 1; num_seqs <= 48; ++num_seqs) {
    for (int32_t context = 1; context <= 4096; context += 61) {
      for (const bool wants_logits : {false, true}) {
        StepBatch batch = Decodes(std::vector<int32_t>(num_seqs, context));
        if (!wants_logits) batch.logits_rows.clear();
        const PaddedShape shape = *PaddedShapeFor(batch, kLimits);
        EXPECT_EQ(shape.wants_logits, wants_logits);
        keys.insert(shape.Key());
        shapes.insert({shape.num_tokens, shape.max_context_len, shape.wants_logits});
      }
    }
  }
  EXPECT_EQ(keys.size(), shapes.size());
}

TEST(PadTest, AddsTokensThatWriteNowhereAndSeeNothing) {
  StepBatch batch = Decodes({7, 20, 33});
  batch.max_blocks_per_seq = 3;
  batch.block_tables = {1, 0, 0, 2, 5, 0, 3, 6, 7};
  const PaddedShape shape = *PaddedShapeFor(batch, kLimits);
  StepBatch padded;
  const StepBatch other = Decodes({1, 1, 1, 1, 1, 1, 1, 1, 1});
  Pad(other, *PaddedShapeFor(other, kLimits), padded);  // leaves nothing behind
  Pad(batch, shape, padded);
  EXPECT_THAT(padded.token_ids, ElementsAre(100, 101, 102, 0));
  EXPECT_THAT(padded.positions, ElementsAre(6, 19, 32, 0));
  EXPECT_THAT(padded.slot_mapping, ElementsAre(22, 35, 48, -1));
  EXPECT_THAT(padded.query_starts, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(padded.context_lens, ElementsAre(7, 20, 33, 0));
  EXPECT_THAT(padded.logits_rows, ElementsAre(0, 1, 2, 0));
  ASSERT_EQ(padded.max_blocks_per_seq, 16);
  ASSERT_EQ(padded.block_tables.size(), 4u * 16u);
  EXPECT_EQ(padded.block_tables[16], 2);
  EXPECT_EQ(padded.block_tables[17], 5);
  EXPECT_EQ(padded.block_tables[2 * 16 + 2], 7);
  EXPECT_EQ(padded.block_tables[3 * 16], 0);
}

}  // namespace
}  // namespace lockstep
