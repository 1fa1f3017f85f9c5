#include "launcher/serving/rank_roll.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RankRollTest : public ::testing::Test {
 protected:
  std::string Missing() const { return roll_.Missing("10.0.0.1:7"); }
  RankRoll roll_{{"a", "a", "b", "b", "c"}};
};

TEST_F(RankRollTest, CompleteWhenAllAreChecked) {
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_FALSE(roll_.IsComplete());
    roll_.Started(rank, {"a", 1});
    roll_.Joined(rank);
    roll_.Checked(rank);
  }
  EXPECT_TRUE(roll_.IsComplete());
}

TEST_F(RankRollTest, RanksThatNeverStartedAreNamedWithTheirHosts) {
  for (const int rank : {0, 1, 3}) roll_.Joined(rank);
  EXPECT_EQ(Missing(), "rank 2 on b, rank 4 on c did not start");
  roll_.Started(4, {"c", 7});
  EXPECT_EQ(Missing(), "rank 2 on b did not start");
}

TEST_F(RankRollTest, RanksThatDidNotJoinAreNamedWithWhatTheyGotStuckAt) {
  for (int rank = 0; rank < 5; ++rank) roll_.Started(rank, {rank < 4 ? "x" : "y", rank});
  roll_.Met(0);
  EXPECT_THAT(Missing(), HasSubstr("ranks 1-3 on x, rank 4 on y started"));
  EXPECT_THAT(Missing(), HasSubstr("MPI's start: see --network"));
  for (int rank = 1; rank < 5; ++rank) roll_.Met(rank);
  roll_.Joined(0);
  EXPECT_THAT(Missing(), HasSubstr("ranks 1-3 on x, rank 4 on y met over MPI"));
  EXPECT_THAT(Missing(), HasSubstr("10.0.0.1:7"));
  EXPECT_THAT(Missing(), HasSubstr("NCCL"));
}

TEST_F(RankRollTest, RanksWhoseLinksDoNotWorkAreNamed) {
  for (int rank = 0; rank < 5; ++rank) roll_.Joined(rank);
  roll_.Checked(0);
  EXPECT_THAT(Missing(), HasSubstr("rank 1 on a, ranks 2-3 on b, rank 4 on c joined"));
}

TEST_F(RankRollTest, NothingGoesBackAndStrangersAreIgnored) {
  roll_.Checked(1);
  roll_.Checked(1);
  roll_.Started(1, {"a", 1});
  roll_.Joined(-1);
  roll_.Joined(5);
  roll_.Started(99, {"z", 1});
  EXPECT_THAT(Missing(), Not(HasSubstr("rank 1")));
  EXPECT_FALSE(roll_.IsComplete());
}

}  // namespace
}  // namespace lockstep
