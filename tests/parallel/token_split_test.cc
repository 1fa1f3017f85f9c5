#include "parallel/token_split.h"

#include "gtest/gtest.h"
#include "parallel/process_grid.h"

namespace lockstep::testing {
namespace {

TEST(TokenSplit, SharesCoverEveryTokenOnce) {
  for (const int tp : {1, 2, 3, 4, 7, 8}) {
    for (int64_t num_tokens = 0; num_tokens <= 50; ++num_tokens) {
      int64_t next = 0;
      for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
        const TokenSplit split = Divided(num_tokens, tp, tp_rank);
        EXPECT_EQ(split.num_tokens, num_tokens);
        EXPECT_EQ(split.mine.begin, tp_rank * split.share) << "where gathered shares lie";
        EXPECT_LE(split.mine.size(), split.share);
        EXPECT_LE(split.mine.end, split.room());
        if (split.mine.size() == 0) continue;
        EXPECT_EQ(split.mine.begin, next) << num_tokens << " over " << tp;
        next = split.mine.end;
      }
      EXPECT_EQ(next, num_tokens) << "over " << tp;
      EXPECT_LT(Divided(num_tokens, tp, 0).room(), num_tokens + tp) << "no more than is needed";
    }
  }
}

TEST(TokenSplit, RoomSufficesForEveryShorterStep) {
  for (const int tp : {1, 2, 3, 8}) {
    for (int64_t num_tokens = 1; num_tokens <= 50; ++num_tokens) {
      EXPECT_GE(TokenRoom(50, tp), Divided(num_tokens, tp, tp - 1).room());
    }
  }
  EXPECT_EQ(TokenRoom(64, 8), 64);
}

TEST(TokenSplit, OneRankAndShortStepsAreUndivided) {
  const ProcessGrid grid = *ProcessGrid::Create(/*tp=*/2, /*pp=*/1);
  std::vector<RankGroups> ranks = MakeInProcessGroups(grid);
  RankGroups& groups = ranks[1];
  EXPECT_FALSE(SplitTokens(groups, 1 << 20, 16384).is_divided()) << "unless somebody asks for it";
  groups.most_undivided_bytes = 10 * 64 * 4;
  const TokenSplit whole = SplitTokens(groups, 10, 64);
  EXPECT_FALSE(whole.is_divided());
  EXPECT_EQ(whole.mine, (Range{0, 10}));
  EXPECT_EQ(whole.room(), 10);
  const TokenSplit divided = SplitTokens(groups, 11, 64);
  EXPECT_TRUE(divided.is_divided());
  EXPECT_EQ(divided.mine, (Range{6, 11}));

  RankGroups alone;
  alone.tp = MakeSelfCommunicator();
  alone.most_undivided_bytes = 0;
  EXPECT_FALSE(SplitTokens(alone, 100, 64).is_divided());
}

}  // namespace
}  // namespace lockstep::testing
