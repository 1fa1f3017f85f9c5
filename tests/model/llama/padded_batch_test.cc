#include "model/llama/padded_batch.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

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
  const auto shape_of = [](size_t num_seqs, const BatchLimits& limits) {
    return *PaddedShapeFor(Decodes(std::vector<int32_t>(num_seqs, 9)), limits);
  };
  EXPECT_EQ(shape_of(1, kLimits).num_tokens, 1);
  EXPECT_EQ(shape_of(3, kLimits).num_tokens, 4);
  EXPECT_EQ(shape_of(5, kLimits).num_tokens, 8);
  EXPECT_EQ(shape_of(41, kLimits).num_tokens, 48);
  const BatchLimits large{.max_batched_tokens = 2048, .max_num_seqs = 250};
  EXPECT_EQ(shape_of(64, large).num_tokens, 64);
  EXPECT_EQ(shape_of(65, large).num_tokens, 80);
  EXPECT_EQ(shape_of(241, large).num_tokens, 250);
}

// Recorded steps serve contexts of any lengths.
TEST(PaddedShapeTest, ContextsDoNotChangeTheShape) {
  const uint64_t key = PaddedShapeFor(Decodes({1, 1, 1}), kLimits)->Key();
  for (const int32_t context : {2, 257, 4096}) {
    EXPECT_EQ(PaddedShapeFor(Decodes({1, context, 5}), kLimits)->Key(), key);
  }
}

// Stages send each other as many rows, and only the last wants logits.
TEST(PaddedShapeTest, LogitsDoNotChangeTheSizes) {
  const PaddedShape all = *PaddedShapeFor(Decodes({5, 9, 6}), kLimits);
  StepBatch batch = Decodes({5, 9, 6});
  batch.logits_rows.pop_back();
  EXPECT_EQ(PaddedShapeFor(batch, kLimits)->Key(), all.Key());
  batch.logits_rows.clear();
  EXPECT_EQ(PaddedShapeFor(batch, kLimits)->num_tokens, all.num_tokens);
  EXPECT_FALSE(PaddedShapeFor(StepBatch{}, kLimits).has_value());
}

// Decodes and, at the end, one chunk; with the decodes' logits and the chunk's last.
StepBatch Mix(int num_decodes, int chunk, int32_t context) {
  StepBatch batch = Decodes(std::vector<int32_t>(static_cast<size_t>(num_decodes), context));
  for (int i = 0; i < chunk; ++i) {
    batch.token_ids.push_back(7);
    batch.positions.push_back(context - chunk + i);
    batch.slot_mapping.push_back(i);
  }
  batch.context_lens.push_back(context);
  batch.query_starts.push_back(static_cast<int32_t>(batch.num_tokens()));
  batch.logits_rows.push_back(static_cast<int32_t>(batch.num_tokens() - 1));
  return batch;
}

TEST(PaddedShapeTest, ChunksGoByFewSizes) {
  const auto sizes = [](int num_decodes, int chunk, const BatchLimits& limits) {
    const PaddedShape shape = *PaddedShapeFor(Mix(num_decodes, chunk, 200), limits);
    EXPECT_TRUE(shape.has_chunks);
    return std::pair(shape.num_tokens, shape.num_seqs);
  };
  const BatchLimits wide{.max_batched_tokens = 512, .max_num_seqs = 256};
  EXPECT_EQ(sizes(0, 2, wide), std::pair(8L, 2L));
  EXPECT_EQ(sizes(6, 2, wide), std::pair(8L, 8L));
  EXPECT_EQ(sizes(1, 63, wide), std::pair(64L, 5L));
  EXPECT_EQ(sizes(3, 62, wide), std::pair(128L, 5L));
  EXPECT_EQ(sizes(4, 60, wide), std::pair(64L, 17L));
  EXPECT_EQ(sizes(126, 2, wide), std::pair(128L, 128L));
  const BatchLimits narrow{.max_batched_tokens = 40, .max_num_seqs = 3};
  EXPECT_EQ(sizes(2, 33, narrow), std::pair(40L, 4L));
  EXPECT_FALSE(PaddedShapeFor(Mix(0, 129, 200), wide).has_value());
}

TEST(PaddedShapeTest, ChunksOfAnySizesHaveFewShapes) {
  const BatchLimits limits{.max_batched_tokens = 2048, .max_num_seqs = 256};
  std::set<uint64_t> keys;
  for (int num_tokens = 2; num_tokens <= kMaxPaddedChunkTokens; ++num_tokens) {
    for (int num_seqs = 1; num_seqs < num_tokens; ++num_seqs) {
      const StepBatch batch = Mix(num_seqs - 1, num_tokens - num_seqs + 1, 200);
      const PaddedShape shape = *PaddedShapeFor(batch, limits);
      ASSERT_GE(shape.num_tokens, num_tokens);
      ASSERT_LE(shape.num_tokens, std::max(2 * num_tokens, 8));
      ASSERT_GT(shape.num_seqs, num_seqs);
      keys.insert(shape.Key());
    }
  }
  EXPECT_EQ(keys.size(), 19u);
}

std::tuple<int64_t, int64_t, bool, bool> SizesOf(const PaddedShape& shape) {
  return {shape.num_tokens, shape.num_seqs, shape.has_chunks, shape.wants_logits};
}

TEST(PaddedShapeTest, EveryShapeHasAKeyOfItsOwnAndIsListed) {
  std::map<uint64_t, decltype(SizesOf({}))> shapes;
  for (int num_seqs = 1; num_seqs <= 48; ++num_seqs) {
    for (int chunk = 1; chunk + num_seqs - 1 <= kLimits.max_batched_tokens; ++chunk) {
      for (const bool wants_logits : {false, true}) {
        StepBatch batch = Mix(num_seqs - 1, chunk, 100);
        if (!wants_logits) batch.logits_rows.clear();
        const PaddedShape shape = *PaddedShapeFor(batch, kLimits);
        EXPECT_EQ(shape.wants_logits, wants_logits);
        EXPECT_EQ(shape.has_chunks, chunk > 1);
        EXPECT_EQ(shapes.emplace(shape.Key(), SizesOf(shape)).first->second, SizesOf(shape));
      }
    }
  }
  std::map<uint64_t, decltype(SizesOf({}))> listed;
  for (const bool wants_logits : {false, true}) {
    int64_t tokens = kLimits.max_batched_tokens;
    for (const PaddedShape& shape : AllPaddedShapes(kLimits, wants_logits)) {
      EXPECT_TRUE(listed.emplace(shape.Key(), SizesOf(shape)).second);
      EXPECT_LE(shape.num_tokens, tokens);
      tokens = shape.num_tokens;
    }
  }
  EXPECT_EQ(listed, shapes);
}

// Each is recorded before a server is ready, twice at most.
TEST(PaddedShapeTest, ThereAreFewEvenForManySequences) {
  const BatchLimits limits{.max_batched_tokens = 8192, .max_num_seqs = 256};
  EXPECT_EQ(AllPaddedShapes(limits, true).size(), 42u);
}

TEST(PadTest, AddsTokensThatWriteNowhereAndSeeNothing) {
  StepBatch batch = Decodes({7, 20, 33});
  batch.table_rows = {5, 0, 7};
  batch.new_blocks = {{5, 0, 1}};
  const PaddedShape shape = *PaddedShapeFor(batch, kLimits);
  StepBatch padded;
  const StepBatch other = Decodes({1, 1, 1, 1, 1, 1, 1, 1, 1});
  Pad(other, *PaddedShapeFor(other, kLimits), padded);  // leaves nothing behind
  batch.token_sources = {-1, 4, 0};
  Pad(batch, shape, padded);
  EXPECT_THAT(padded.token_ids, ElementsAre(100, 101, 102, 0));
  EXPECT_THAT(padded.token_sources, ElementsAre(-1, 4, 0, -1));
  EXPECT_THAT(padded.positions, ElementsAre(6, 19, 32, 0));
  EXPECT_THAT(padded.slot_mapping, ElementsAre(22, 35, 48, -1));
  EXPECT_THAT(padded.query_starts, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(padded.context_lens, ElementsAre(7, 20, 33, 0));
  EXPECT_THAT(padded.logits_rows, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(padded.table_rows, ElementsAre(5, 0, 7, 0));  // nobody reads an added one's
  EXPECT_TRUE(padded.new_blocks.empty());
}

TEST(PadTest, TokensAddedToChunksAreASequenceWithoutContext) {
  StepBatch batch = Mix(1, 3, 20);
  batch.table_rows = {3, 1};
  StepBatch padded;
  Pad(batch, *PaddedShapeFor(batch, kLimits), padded);
  EXPECT_THAT(padded.token_ids, ElementsAre(100, 7, 7, 7, 0, 0, 0, 0));
  EXPECT_THAT(padded.positions, ElementsAre(19, 17, 18, 19, 0, 0, 0, 0));
  EXPECT_THAT(padded.slot_mapping, ElementsAre(19, 0, 1, 2, -1, -1, -1, -1));
  EXPECT_THAT(padded.query_starts, ElementsAre(0, 1, 4, 8, 8, 8));
  EXPECT_THAT(padded.context_lens, ElementsAre(20, 20, 0, 0, 0));
  EXPECT_THAT(padded.logits_rows, ElementsAre(0, 3, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(padded.table_rows, ElementsAre(3, 1, 0, 0, 0));
}

// There is a sequence for tokens added even where there may be no more sequences.
TEST(PadTest, AsManySequencesAsThereMayBe) {
  const BatchLimits limits{.max_batched_tokens = 64, .max_num_seqs = 2};
  StepBatch batch = Mix(1, 6, 20);
  StepBatch padded;
  Pad(batch, *PaddedShapeFor(batch, limits), padded);
  EXPECT_THAT(padded.query_starts, ElementsAre(0, 1, 7, 8));
  batch = Mix(1, 7, 20);  // none to add
  Pad(batch, *PaddedShapeFor(batch, limits), padded);
  EXPECT_THAT(padded.query_starts, ElementsAre(0, 1, 8, 8));
}

}  // namespace
}  // namespace lockstep
