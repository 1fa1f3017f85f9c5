#include "tests/parallel/local_ranks.h"

#include <csignal>
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/collective_checks.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

absl::Status CheckGroup(Communicator& group) {
  for (const int64_t count : kCounts) {
    RETURN_IF_ERROR(CheckAllReduce(group, count));
    RETURN_IF_ERROR(CheckReduceScatter(group, count));
    RETURN_IF_ERROR(CheckAllGather(group, count, /*in_place=*/false));
    RETURN_IF_ERROR(CheckAllGather(group, count, /*in_place=*/true));
    RETURN_IF_ERROR(CheckMessagesInOrder(group, count));
  }
  return CheckProbe(group);
}

// argument: how many of the ranks are one stage.
absl::Status Collectives(const LocalRank& rank) {
  const int tp = std::stoi(rank.argument);
  RankGroups groups = rank.Groups(*ProcessGrid::Create(tp, rank.size / tp));
  EXPECT_EQ(groups.tp->size(), tp);
  EXPECT_EQ(groups.pp->size(), rank.size / tp);
  RETURN_IF_ERROR(CheckGroup(*groups.tp));
  return CheckGroup(*groups.pp);
}

// Ends as its argument says; the others see it.
absl::Status LastRankEnds(const LocalRank& rank) {
  RankGroups groups = rank.Groups(*ProcessGrid::Create(rank.size, 1));
  if (rank.rank < rank.size - 1) {
    EXPECT_EQ(groups.tp->Barrier().code(), absl::StatusCode::kUnavailable);
    return absl::OkStatus();
  }
  if (rank.argument == "killed") raise(SIGKILL);
  EXPECT_NE(rank.argument, "expects") << "as it should be";
  return rank.argument == "fails" ? absl::InternalError("as it should") : absl::OkStatus();
}

absl::Status NeverEnds(const LocalRank& rank) {
  while (rank.rank == 1) pause();
  return absl::OkStatus();
}

TEST(LocalRanksTest, GroupsDoWhatEveryBodyDoes) {
  for (const int tp : {1, 2, 4}) {
    EXPECT_THAT(RunLocalRanks({4, "collectives", std::to_string(tp)}), Each(0));
  }
}

TEST(LocalRanksTest, TellsHowEachRankEnded) {
  EXPECT_THAT(RunLocalRanks({3, "last rank ends", "killed"}), ElementsAre(0, 0, 128 + SIGKILL));
  EXPECT_THAT(RunLocalRanks({2, "last rank ends", "fails"}), ElementsAre(0, 1));
  EXPECT_THAT(RunLocalRanks({2, "last rank ends", "expects"}), ElementsAre(0, 1));
}

TEST(LocalRanksTest, RanksThatDoNotEndAreKilled) {
  EXPECT_THAT(RunLocalRanks({2, "never ends", "", std::chrono::seconds(10)}),
              ElementsAre(0, 128 + SIGKILL));
}

TEST(LocalRanksTest, TheEnvironmentMaySayHowLongAJobTakes) {
  unsetenv("LOCKSTEP_RANKS_TIMEOUT_S");
  EXPECT_EQ(LocalJob().timeout, std::chrono::seconds(300));
  setenv("LOCKSTEP_RANKS_TIMEOUT_S", "7", 1);
  EXPECT_EQ(LocalJob().timeout, std::chrono::seconds(7));
  unsetenv("LOCKSTEP_RANKS_TIMEOUT_S");
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  if (const auto status = RunIfLocalRank({{"collectives", &Collectives},
                                          {"last rank ends", &LastRankEnds},
                                          {"never ends", &NeverEnds}})) {
    return *status;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
