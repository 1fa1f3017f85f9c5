#include "model/llama/block_tables.h"

#include <climits>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNumBlocks = 10;

// Three rows of four blocks of four tokens.
const BatchLimits kTableLimits{
    .max_batched_tokens = 12, .max_num_seqs = 3, .max_model_len = 15, .block_size = 4};

// What a device has that is told of changes, a few at once.
class Copy {
 public:
  explicit Copy(const BlockTables& tables) : entries_(tables.entries().size()) {}
  // How many were told of.
  int64_t Update(BlockTables& tables, size_t at_once = 2) {
    std::vector<PlacedBlock> room(at_once);
    int64_t count = 0;
    while (tables.num_changes() > 0) {
      for (const auto& [place, block] : tables.TakeChanged(room)) {
        entries_[static_cast<size_t>(place)] = block;
        ++count;
      }
    }
    return count;
  }
  const std::vector<int32_t>& entries() const { return entries_; }

 private:
  std::vector<int32_t> entries_;
};

std::vector<int32_t> EntriesOf(const BlockTables& tables) {
  return {tables.entries().begin(), tables.entries().end()};
}

absl::Status Write(BlockTables& tables, const std::vector<NewBlock>& blocks) {
  return tables.Write(blocks, kNumBlocks);
}

TEST(BlockTables, ARowStaysAndGrows) {
  BlockTables tables(kTableLimits);
  EXPECT_EQ(tables.num_rows(), 3);
  EXPECT_EQ(tables.width(), 4);
  ASSERT_TRUE(Write(tables, {{1, 0, 7}, {1, 1, 3}, {2, 0, 7}}).ok());
  EXPECT_THAT(tables.row(0), IsEmpty());
  EXPECT_THAT(tables.row(1), ElementsAre(7, 3));
  ASSERT_TRUE(Write(tables, {{1, 2, 0}}).ok());
  EXPECT_THAT(tables.row(1), ElementsAre(7, 3, 0));
  EXPECT_THAT(tables.row(2), ElementsAre(7));
}

// Nobody who comes after another sees more than was written for him.
TEST(BlockTables, ARowEndsWithTheBlockWrittenLast) {
  BlockTables tables(kTableLimits);
  ASSERT_TRUE(Write(tables, {{0, 0, 1}, {0, 1, 2}, {0, 2, 3}, {0, 3, 4}}).ok());
  ASSERT_TRUE(Write(tables, {{0, 0, 5}}).ok());
  EXPECT_THAT(tables.row(0), ElementsAre(5));
  ASSERT_TRUE(Write(tables, {{0, 1, 6}, {0, 2, 7}, {0, 1, 8}}).ok());
  EXPECT_THAT(tables.row(0), ElementsAre(5, 8));
}

TEST(BlockTables, TellsOfWhatHasChangedAlone) {
  BlockTables tables(kTableLimits);
  Copy copy(tables);
  ASSERT_TRUE(Write(tables, {{0, 0, 1}, {0, 1, 2}, {2, 0, 0}}).ok());
  EXPECT_EQ(copy.Update(tables), 2) << "block 0 is there";
  EXPECT_EQ(copy.Update(tables), 0);
  ASSERT_TRUE(Write(tables, {{0, 0, 1}, {0, 1, 4}, {0, 2, 5}}).ok());  // a prefix in common
  EXPECT_EQ(copy.Update(tables), 2);
  ASSERT_TRUE(Write(tables, {{0, 0, 6}}).ok());
  ASSERT_TRUE(Write(tables, {{0, 0, 1}}).ok());  // as the copy has it
  copy.Update(tables);
  EXPECT_EQ(copy.entries(), EntriesOf(tables));
}

TEST(BlockTables, WhatIsRefusedHasChangedNothing) {
  BlockTables tables(kTableLimits);
  Copy copy(tables);
  ASSERT_TRUE(Write(tables, {{0, 0, 1}, {0, 1, 2}, {1, 0, 9}}).ok());
  copy.Update(tables);
  const std::vector<int32_t> before = EntriesOf(tables);
  for (const NewBlock& bad : std::initializer_list<NewBlock>{{-1, 0, 1},
                                                             {3, 0, 1},
                                                             {INT_MAX, 0, 1},
                                                             {INT_MIN, 0, 1},
                                                             {1, -1, 1},
                                                             {1, 2, 1},
                                                             {2, 1, 1},
                                                             {1, INT_MAX, 1},
                                                             {1, INT_MIN, 1},
                                                             {1, 1, -1},
                                                             {1, 1, 10},
                                                             {1, 1, INT_MAX},
                                                             {1, 1, INT_MIN}}) {
    const absl::Status status = Write(tables, {{0, 0, 5}, {1, 0, 4}, {0, 1, 6}, bad});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("new_blocks[3]"));
    EXPECT_EQ(EntriesOf(tables), before);
    EXPECT_THAT(tables.row(0), ElementsAre(1, 2));
    EXPECT_THAT(tables.row(1), ElementsAre(9));
    EXPECT_EQ(tables.num_changes(), 0);
  }
  const std::vector<NewBlock> full = {{2, 0, 1}, {2, 1, 1}, {2, 2, 1}, {2, 3, 1}, {2, 4, 1}};
  EXPECT_THAT(std::string(Write(tables, full).message()), HasSubstr("new_blocks[4]"));
  EXPECT_THAT(tables.row(2), IsEmpty());
}

TEST(BlockTables, ClearedRowsAreEmptyAndTheCopyIsStillTheSame) {
  BlockTables tables(kTableLimits);
  Copy copy(tables);
  ASSERT_TRUE(Write(tables, {{0, 0, 1}, {0, 1, 2}}).ok());
  tables.Clear();  // before anyone has been told
  EXPECT_THAT(tables.row(0), IsEmpty());
  EXPECT_FALSE(Write(tables, {{0, 1, 2}}).ok());
  ASSERT_TRUE(Write(tables, {{0, 0, 2}}).ok());
  tables.UndoWrite();
  EXPECT_THAT(tables.row(0), IsEmpty());
  copy.Update(tables);
  EXPECT_EQ(copy.entries(), EntriesOf(tables));
}

TEST(BlockTables, AnyWritesAndUndosLeaveTheCopyWhatTheTablesAre) {
  std::mt19937 random(3);
  const auto below = [&](int32_t count) { return static_cast<int32_t>(random() % count); };
  BlockTables tables(kTableLimits);
  Copy copy(tables);
  std::vector<std::vector<int32_t>> rows(3);  // the truth
  int num_refused = 0;
  for (int step = 0; step < 3000; ++step) {
    std::vector<std::vector<int32_t>> next = rows;
    std::vector<NewBlock> blocks;
    for (int i = below(7); i > 0; --i) {
      const int32_t row = below(3);
      std::vector<int32_t>& blocks_of_row = next[static_cast<size_t>(row)];
      const int32_t at = below(static_cast<int32_t>(blocks_of_row.size()) + 1);
      if (at == tables.width()) continue;
      blocks.push_back({row, at, below(kNumBlocks)});
      blocks_of_row.resize(static_cast<size_t>(at));
      blocks_of_row.push_back(blocks.back().block);
    }
    const bool is_bad = below(4) == 0;
    if (is_bad) blocks.push_back({below(3), 0, kNumBlocks});
    num_refused += is_bad ? 1 : 0;
    ASSERT_EQ(Write(tables, blocks).ok(), !is_bad);
    if (!is_bad && below(4) == 0) {
      tables.UndoWrite();
    } else if (!is_bad) {
      rows = next;
    }
    for (size_t row = 0; row < 3; ++row) {
      const auto got = tables.row(static_cast<int64_t>(row));
      ASSERT_EQ(std::vector<int32_t>(got.begin(), got.end()), rows[row]) << "step " << step;
    }
    if (below(3) > 0) copy.Update(tables, 1 + static_cast<size_t>(below(3)));
    if (tables.num_changes() == 0) {
      ASSERT_EQ(copy.entries(), EntriesOf(tables));
    }
  }
  EXPECT_GT(num_refused, 500);
}

TEST(BlockTables, LimitsThatNoTablesCanHaveAreRefused) {
  BatchLimits limits{.max_num_seqs = 4095, .max_model_len = (1 << 23) - 1, .block_size = 16};
  EXPECT_TRUE(CheckBatchLimits(limits).ok());
  limits.max_num_seqs = 4096;
  EXPECT_THAT(std::string(CheckBatchLimits(limits).message()), HasSubstr("2147483648 entries"));
}

}  // namespace
}  // namespace lockstep
