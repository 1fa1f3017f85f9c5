#include "parallel/communicator.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class InProcessTest : public ::testing::TestWithParam<int> {
 protected:
  void OnEveryRank(const std::function<absl::Status(Communicator& group)>& body) {
    RunRanks(/*tp=*/GetParam(), /*pp=*/1,
             [&](int, RankGroups& groups) { return body(*groups.tp); });
  }
};

TEST_P(InProcessTest, AllReduceIsTheTreeOfNeighboursToTheBit) {
  OnEveryRank([](Communicator& group) -> absl::Status {
    for (const int64_t count : kCounts) RETURN_IF_ERROR(CheckAllReduce(group, count));
    return absl::OkStatus();
  });
}

TEST_P(InProcessTest, ReduceScatterIsAShareOfThatTree) {
  OnEveryRank([](Communicator& group) -> absl::Status {
    for (const int64_t count : kCounts) RETURN_IF_ERROR(CheckReduceScatter(group, count));
    return absl::OkStatus();
  });
}

TEST_P(InProcessTest, AllGatherConcatenates) {
  OnEveryRank([](Communicator& group) -> absl::Status {
    for (const int64_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        RETURN_IF_ERROR(CheckAllGather(group, count, in_place));
      }
      RETURN_IF_ERROR(CheckAllGatherTogether(group, count));
    }
    return absl::OkStatus();
  });
}

TEST_P(InProcessTest, MessagesArriveInOrder) {
  OnEveryRank([](Communicator& group) -> absl::Status {
    for (const int64_t count : kCounts) RETURN_IF_ERROR(CheckMessagesInOrder(group, count));
    return absl::OkStatus();
  });
}

TEST_P(InProcessTest, ProbeSeesMessagesOnly) {
  OnEveryRank([](Communicator& group) { return CheckProbe(group); });
}

TEST_P(InProcessTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> num_arrived{0};
  OnEveryRank([&](Communicator& group) -> absl::Status {
    for (int round = 1; round <= 20; ++round) {
      ++num_arrived;
      RETURN_IF_ERROR(group.Barrier());
      if (num_arrived < round * group.size()) return Mismatch(group, "barrier", round);
      RETURN_IF_ERROR(group.Barrier());
    }
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, InProcessTest, ::testing::Range(1, 10));

TEST(InProcessGroupsTest, GroupsFollowTheGrid) {
  const ProcessGrid grid = *ProcessGrid::Create(/*tp=*/2, /*pp=*/3);
  const std::vector<RankGroups> ranks = MakeInProcessGroups(grid);
  ASSERT_EQ(ranks.size(), 6u);
  for (int rank = 0; rank < 6; ++rank) {
    const RankGroups& groups = ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(groups.tp->size(), 2);
    EXPECT_EQ(groups.pp->size(), 3);
    EXPECT_EQ(groups.tp->rank(), grid.tp_rank_of(rank));
    EXPECT_EQ(groups.pp->rank(), grid.stage_of(rank));
  }
}

TEST(InProcessGroupsTest, TensorGroupsDoNotMix) {
  RunRanks(/*tp=*/2, /*pp=*/3, [](int rank, RankGroups& groups) -> absl::Status {
    float value = static_cast<float>(rank);
    RETURN_IF_ERROR(groups.tp->AllReduceSum(&value, 1));
    // Stage s holds ranks 2s and 2s + 1.
    if (value != static_cast<float>(4 * groups.pp->rank() + 1)) {
      return Mismatch(*groups.tp, "sum", rank);
    }
    return absl::OkStatus();
  });
}

// What one rank is doing when another gives up.
using Operation = absl::Status (*)(RankGroups& groups);
const Operation kOperations[] = {
    [](RankGroups& groups) { return groups.tp->Barrier(); },
    [](RankGroups& groups) {
      float value = 0;
      return groups.tp->AllReduceSum(&value, 1);
    },
    [](RankGroups& groups) {
      char mine = 0, all[2];
      return groups.tp->AllGather(&mine, 1, all);
    },
    [](RankGroups& groups) {
      char byte;
      return groups.tp->Recv(1, &byte, 1);
    },
    [](RankGroups& groups) {
      char byte;
      return groups.pp->Recv(1, &byte, 1);
    },
};

TEST(InProcessAbortTest, EndsEveryWaitOfEveryGroup) {
  for (const Operation operation : kOperations) {
    std::vector<RankGroups> ranks = MakeInProcessGroups(*ProcessGrid::Create(2, 2));
    absl::Status result;
    std::thread waiter([&] { result = operation(ranks[0]); });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // mostly: the wait has begun
    ranks[3].pp->Abort();
    waiter.join();
    EXPECT_EQ(result.code(), absl::StatusCode::kUnavailable) << result;
    EXPECT_EQ(operation(ranks[0]).code(), absl::StatusCode::kUnavailable);
  }
}

TEST(InProcessMessageTest, SizesMustAgree) {
  std::vector<RankGroups> ranks = MakeInProcessGroups(*ProcessGrid::Create(1, 2));
  const char message[3] = {};
  ASSERT_TRUE(ranks[0].pp->Send(1, message, 3).ok());
  char received[4];
  const absl::Status status = ranks[1].pp->Recv(0, received, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("sent 3 bytes"));
}

TEST(InProcessMessageTest, PeersOutsideTheGroupAreRefused) {
  std::vector<RankGroups> ranks = MakeInProcessGroups(*ProcessGrid::Create(1, 2));
  char byte = 0;
  for (const int peer : {-1, 0, 2}) {
    EXPECT_EQ(ranks[0].pp->Send(peer, &byte, 1).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(ranks[0].pp->Recv(peer, &byte, 1).code(), absl::StatusCode::kInternal);
    EXPECT_FALSE(ranks[0].pp->Probe(peer));
  }
}

TEST(SelfCommunicatorTest, CollectivesAreTheIdentity) {
  const std::unique_ptr<Communicator> self = MakeSelfCommunicator();
  EXPECT_EQ(self->size(), 1);
  for (const int64_t count : kCounts) {
    EXPECT_TRUE(CheckAllReduce(*self, count).ok());
    EXPECT_TRUE(CheckAllGather(*self, count, /*in_place=*/false).ok());
    EXPECT_TRUE(CheckAllGather(*self, count, /*in_place=*/true).ok());
  }
  EXPECT_TRUE(self->Barrier().ok());
  char byte = 0;
  EXPECT_FALSE(self->Send(0, &byte, 1).ok());
  EXPECT_FALSE(self->Recv(0, &byte, 1).ok());
  self->Abort();
  EXPECT_EQ(self->Barrier().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep::testing
