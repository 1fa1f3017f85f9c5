#include "parallel/process_grid.h"

#include <climits>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(ProcessGridTest, TensorParallelRanksAreNeighbours) {
  const ProcessGrid grid = *ProcessGrid::Create(/*tp=*/4, /*pp=*/2);
  EXPECT_EQ(grid.world_size(), 8);
  EXPECT_EQ(grid.stage_of(3), 0);
  EXPECT_EQ(grid.tp_rank_of(3), 3);
  EXPECT_EQ(grid.stage_of(4), 1);
  EXPECT_EQ(grid.tp_rank_of(4), 0);
}

TEST(ProcessGridTest, RankAndPlaceAreInverse) {
  for (const auto& [tp, pp] : {std::pair(1, 1), {1, 5}, {3, 2}, {8, 16}}) {
    const ProcessGrid grid = *ProcessGrid::Create(tp, pp);
    for (int rank = 0; rank < grid.world_size(); ++rank) {
      EXPECT_LT(grid.stage_of(rank), pp);
      EXPECT_LT(grid.tp_rank_of(rank), tp);
      EXPECT_EQ(grid.rank_of(grid.stage_of(rank), grid.tp_rank_of(rank)), rank);
    }
  }
}

TEST(ProcessGridTest, ImpossibleGridsAreRefusedWithTheirNumbers) {
  EXPECT_TRUE(ProcessGrid::Create(65536, 1).ok());
  EXPECT_TRUE(ProcessGrid::Create(256, 256).ok());
  for (const auto& [tp, pp] :
       {std::pair(0, 1), {1, 0}, {-1, -1}, {65537, 1}, {256, 257}, {INT_MAX, INT_MAX}}) {
    const auto grid = ProcessGrid::Create(tp, pp);
    ASSERT_FALSE(grid.ok());
    EXPECT_EQ(grid.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(grid.status().message().find(std::to_string(tp)), std::string_view::npos);
  }
}

}  // namespace
}  // namespace lockstep
