// Runs under mpirun: every rank runs every test, the checks are the in-process body's.
#include "parallel/mpi_communicator.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/mpi_test_main.h"

namespace lockstep::testing {
namespace {

// As measured; through shared memory; by messages; and by messages cut into pieces (as those above
// 1 GiB are) with each all-reduce algorithm.
const MpiOptions kOptions[] = {
    {},
    {.host_collectives = HostCollectives::kSharedMemory},
    {.host_collectives = HostCollectives::kMessages},
    {.host_collectives = HostCollectives::kMessages,
     .small_all_reduce_bytes = 0,
     .max_message_bytes = 5000},
    {.host_collectives = HostCollectives::kMessages,
     .small_all_reduce_bytes = int64_t{1} << 40,
     .max_message_bytes = 65536},
};

class MpiTest : public ::testing::TestWithParam<MpiOptions> {
 protected:
  // One tensor parallel group of all ranks.
  void SetUp() override {
    auto groups = MakeMpiGroups(TestSession(), *ProcessGrid::Create(TestSession().world_size(), 1),
                                GetParam());
    ASSERT_TRUE(groups.ok()) << groups.status();
    groups_ = *std::move(groups);
  }
  Communicator& group() { return *groups_.tp; }
  RankGroups groups_;
};

TEST_P(MpiTest, AllReduceIsTheTreeOfNeighboursToTheBit) {
  for (const int64_t count : kCounts) {
    const absl::Status status = CheckAllReduce(group(), count);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(MpiTest, ReduceScatterIsAShareOfThatTree) {
  for (const int64_t count : kCounts) {
    const absl::Status status = CheckReduceScatter(group(), count);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(MpiTest, AllGatherConcatenates) {
  for (const int64_t count : kCounts) {
    for (const bool in_place : {false, true}) {
      const absl::Status status = CheckAllGather(group(), count, in_place);
      EXPECT_TRUE(status.ok()) << status;
    }
    const absl::Status status = CheckAllGatherTogether(group(), count);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(MpiTest, MessagesArriveInOrder) {
  for (const int64_t count : kCounts) {
    const absl::Status status = CheckMessagesInOrder(group(), count);
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(MpiTest, ProbeSeesMessagesOnly) {
  const absl::Status status = CheckProbe(group());
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Options, MpiTest, ::testing::ValuesIn(kOptions));

std::string TextOf(int rank) { return std::string(static_cast<size_t>(rank) * 1000, 'a'); }

TEST(MpiSessionTest, EveryRankHearsWhatRankZeroSays) {
  const MpiSession& session = TestSession();
  for (const std::string& said : {std::string("s3cret"), std::string(), std::string("\0x", 2)}) {
    const auto heard = session.Broadcast(session.rank() == 0 ? said : "other");
    ASSERT_TRUE(heard.ok()) << heard.status();
    EXPECT_EQ(*heard, said);
  }
}

TEST(MpiSessionTest, EveryRankHearsWhatEachSays) {
  const MpiSession& session = TestSession();
  const auto heard = session.AllGather(TextOf(session.rank()));  // rank 0 says nothing
  ASSERT_TRUE(heard.ok()) << heard.status();
  ASSERT_EQ(std::ssize(*heard), session.world_size());
  for (int rank = 0; rank < session.world_size(); ++rank) {
    EXPECT_EQ((*heard)[static_cast<size_t>(rank)], TextOf(rank));
  }
}

TEST(MpiSessionTest, AllRanksOfThisJobShareANode) {
  EXPECT_EQ(TestSession().node(), 0);
  EXPECT_EQ(TestSession().num_ranks_on_node(), TestSession().world_size());
}

class MpiGroupsTest : public ::testing::Test {
 protected:
  RankGroups Make(int tp, int pp, const MpiOptions& options = {}) {
    auto groups = MakeMpiGroups(TestSession(), *ProcessGrid::Create(tp, pp), options);
    EXPECT_TRUE(groups.ok()) << groups.status();
    return groups.ok() ? *std::move(groups) : RankGroups{};
  }
  int world() const { return TestSession().world_size(); }
};

TEST_F(MpiGroupsTest, FollowTheGrid) {
  for (int tp = 1; tp <= world(); ++tp) {
    if (world() % tp != 0) continue;
    const ProcessGrid grid = *ProcessGrid::Create(tp, world() / tp);
    RankGroups groups = Make(grid.tp(), grid.pp());
    EXPECT_EQ(groups.tp->rank(), grid.tp_rank_of(TestSession().rank()));
    EXPECT_EQ(groups.tp->size(), grid.tp());
    EXPECT_EQ(groups.pp->rank(), grid.stage_of(TestSession().rank()));
    EXPECT_EQ(groups.pp->size(), grid.pp());
    float value = static_cast<float>(TestSession().rank());
    ASSERT_TRUE(groups.pp->AllReduceSum(&value, 1).ok());
    float expected = 0;
    for (int s = 0; s < grid.pp(); ++s) {
      expected += static_cast<float>(grid.rank_of(s, groups.tp->rank()));
    }
    EXPECT_EQ(value, expected);
  }
}

TEST_F(MpiGroupsTest, GridMustMatchTheJob) {
  const auto groups = MakeMpiGroups(TestSession(), *ProcessGrid::Create(world() + 1, 1));
  ASSERT_FALSE(groups.ok());
  EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A generous bound on work, not on time: a wait that polls without sleeping uses all of it.
TEST_F(MpiGroupsTest, WaitingForALatePeerSleeps) {
  RankGroups groups = Make(1, world());
  ASSERT_TRUE(groups.pp->Barrier().ok());
  constexpr double kLateSeconds = 0.5;
  char byte = 0;
  std::vector<char> large(100000);
  for (const bool is_large : {false, true}) {
    char* data = is_large ? large.data() : &byte;
    const int64_t bytes = is_large ? std::ssize(large) : 1;
    if (groups.pp->rank() == 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kLateSeconds));
      for (int peer = 1; peer < world(); ++peer)
        ASSERT_TRUE(groups.pp->Send(peer, data, bytes).ok());
    } else {
      const double before = CpuSeconds();
      ASSERT_TRUE(groups.pp->Recv(0, data, bytes).ok());
      EXPECT_LT(CpuSeconds() - before, kLateSeconds / 4);
    }
    ASSERT_TRUE(groups.pp->Barrier().ok());
  }
}

// As token ids are sent to a first stage that waits for a plan, outside MPI.
TEST_F(MpiGroupsTest, SmallMessagesDoNotWaitForTheirReceiver) {
  if (world() < 2) GTEST_SKIP() << "needs a peer";
  RankGroups groups = Make(1, world());
  // Whoever has sent everything adds a byte to a file that the receiver looks at.
  std::array<char, 64> path = {};
  if (groups.pp->rank() == 0) {
    std::snprintf(path.data(), path.size(), "/tmp/mpi_small_messages_XXXXXX");
    ::close(::mkstemp(path.data()));
  }
  std::vector<char> paths(path.size() * static_cast<size_t>(world()));
  ASSERT_TRUE(groups.pp->AllGather(path.data(), std::ssize(path), paths.data()).ok());
  constexpr int kNumMessages = 40;
  std::vector<int32_t> tokens(Communicator::kMostCopiedBytes / 4);
  const int64_t bytes = Communicator::kMostCopiedBytes;
  if (groups.pp->rank() == 0) {
    const auto size = [&] { return static_cast<int>(std::filesystem::file_size(paths.data())); };
    for (int i = 0; i < 3000 && size() < world() - 1; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(size(), world() - 1);
    std::filesystem::remove(paths.data());
    for (int peer = 1; peer < world(); ++peer) {
      for (int i = 0; i < kNumMessages; ++i) {
        ASSERT_TRUE(groups.pp->Recv(peer, tokens.data(), bytes).ok());
        EXPECT_EQ(tokens[0], i);
        EXPECT_EQ(tokens.back(), peer);
      }
    }
  } else {
    for (int i = 0; i < kNumMessages; ++i) {
      tokens[0] = i;
      tokens.back() = groups.pp->rank();
      ASSERT_TRUE(groups.pp->Send(0, tokens.data(), bytes).ok());
      tokens.assign(tokens.size(), -1);
    }
    std::ofstream(paths.data(), std::ios::app) << 'x' << std::flush;
  }
  ASSERT_TRUE(groups.pp->Barrier().ok());
}

TEST_F(MpiGroupsTest, WaitingInACollectiveForALatePeerSleeps) {
  RankGroups groups = Make(world(), 1);
  ASSERT_TRUE(groups.tp->Barrier().ok());
  constexpr double kLateSeconds = 0.5;
  const bool is_late = groups.tp->rank() == world() - 1;
  if (is_late) std::this_thread::sleep_for(std::chrono::duration<double>(kLateSeconds));
  const double before = CpuSeconds();
  float value = 1;
  ASSERT_TRUE(groups.tp->AllReduceSum(&value, 1).ok());
  EXPECT_LT(CpuSeconds() - before, kLateSeconds / 4);
  EXPECT_EQ(value, static_cast<float>(world()));
}

TEST_F(MpiGroupsTest, AbortEndsTheWaitOfThisRank) {
  if (world() < 2) GTEST_SKIP() << "needs a peer";
  {
    RankGroups groups = Make(1, world());
    std::thread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      groups.pp->Abort();
    });
    char byte = 0;
    const int peer = groups.pp->rank() == 0 ? 1 : 0;
    EXPECT_EQ(groups.pp->Recv(peer, &byte, 1).code(), absl::StatusCode::kUnavailable);
    aborter.join();
    EXPECT_EQ(groups.pp->Barrier().code(), absl::StatusCode::kUnavailable);
  }
  {
    RankGroups groups = Make(world(), 1);
    if (groups.tp->rank() == 0) {
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        groups.tp->Abort();
      });
      EXPECT_EQ(groups.tp->Barrier().code(), absl::StatusCode::kUnavailable);
      aborter.join();
    }
  }
  EXPECT_TRUE(Make(world(), 1).tp->Barrier().ok());
}

}  // namespace
}  // namespace lockstep::testing
