// Runs under mpirun: ranks that leave a round in the midst of whatever they did, and meet again.
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/mpi_test_main.h"

namespace lockstep::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

const MpiOptions kOptions[] = {
    {},
    {.host_collectives = HostCollectives::kMessages},
    {.host_collectives = HostCollectives::kMessages,
     .small_all_reduce_bytes = 0,
     .max_message_bytes = 65536},
};

void Sleep(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class MpiRendezvousTest : public ::testing::TestWithParam<MpiOptions> {
 protected:
  // tp 0: one tensor parallel group of all; else the pipeline has the rest.
  void Make(int tp = 0) {
    const ProcessGrid grid = *ProcessGrid::Create(tp > 0 ? tp : world(), tp > 0 ? world() / tp : 1);
    auto made = MakeMpiRendezvous(TestSession(), grid, GetParam());
    ASSERT_TRUE(made.ok()) << made.status();
    rendezvous_ = *std::move(made);
    NextRound();
  }
  void NextRound(uint64_t epoch = 0) {
    auto round = rendezvous_->Next(epoch, kPatience);
    ASSERT_TRUE(round.ok()) << round.status();
    epoch_ = round->epoch;
    tp_ = std::move(round->groups.tp);
    pp_ = std::move(round->groups.pp);
  }
  void LeaveRound() {
    tp_->Abort();
    pp_->Abort();
  }
  // A rank that leaves ends the collectives that others have not quite finished.
  static void AwaitAll() { EXPECT_TRUE(TestSession().AllGather("").ok()); }
  // Nothing of the last round may be seen in this one.
  void ExpectGroupsWork() {
    for (Communicator* group : {tp_.get(), pp_.get()}) {
      if (group->size() == 1) continue;
      for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{100000}}) {
        EXPECT_TRUE(CheckAllReduce(*group, count).ok());
        EXPECT_TRUE(CheckAllGather(*group, count, /*in_place=*/false).ok());
        EXPECT_TRUE(CheckMessagesInOrder(*group, count).ok());
      }
    }
    AwaitAll();
  }
  int world() const { return TestSession().world_size(); }
  int rank() const { return TestSession().rank(); }
  bool is_last() const { return rank() == world() - 1; }

  std::unique_ptr<Rendezvous> rendezvous_;
  uint64_t epoch_ = 0;
  std::unique_ptr<Communicator> tp_, pp_;
};

TEST_P(MpiRendezvousTest, AllAgreeOnTheHighestEpoch) {
  Make();
  LeaveRound();
  NextRound(100 + static_cast<uint64_t>(rank()));
  EXPECT_EQ(epoch_, 100u + static_cast<uint64_t>(world()) - 1);
  ExpectGroupsWork();
}

// The others are in an all-reduce that can never end, and learn only from it that a rank has left.
TEST_P(MpiRendezvousTest, WaitsInACollectiveEndWhenAPeerLeaves) {
  Make();
  for (const int64_t count : {int64_t{1}, int64_t{100000}}) {
    std::vector<float> data(static_cast<size_t>(count), 1.0f);
    if (is_last()) {
      Sleep(30);
    } else {
      EXPECT_EQ(tp_->AllReduceSum(data.data(), count).code(), absl::StatusCode::kUnavailable);
    }
    LeaveRound();
    NextRound();
    ExpectGroupsWork();
  }
}

// Aborted from another thread, as when a rank's own stream closes.
TEST_P(MpiRendezvousTest, AnAbortedAllReduceLeavesNoTrace) {
  Make();
  std::vector<float> data(100000, 1.0f);
  if (!is_last()) {
    std::thread aborter([&] {
      Sleep(20);
      tp_->Abort();
    });
    EXPECT_EQ(tp_->AllReduceSum(data.data(), std::ssize(data)).code(),
              absl::StatusCode::kUnavailable);
    aborter.join();
  }
  LeaveRound();
  NextRound();
  ExpectGroupsWork();
}

// One message was sent and one announced when the round ended, neither received.
TEST_P(MpiRendezvousTest, StaleMessagesAreNotReceived) {
  Make(1);
  std::vector<int32_t> data(100000, -1);
  const int64_t bytes = std::ssize(data) * static_cast<int64_t>(sizeof(int32_t));
  if (rank() == 0) {
    EXPECT_TRUE(pp_->Send(1, data.data(), 8).ok());
    std::thread aborter([&] {
      Sleep(20);
      pp_->Abort();
    });
    EXPECT_EQ(pp_->Send(1, data.data(), bytes).code(), absl::StatusCode::kUnavailable);
    aborter.join();
  }
  LeaveRound();
  NextRound();
  EXPECT_FALSE(rank() == 1 && pp_->Probe(0));
  ExpectGroupsWork();
}

TEST_P(MpiRendezvousTest, AnIdleRankLearnsThatTheRoundIsOver) {
  Make();
  EXPECT_FALSE(rendezvous_->Over());
  AwaitAll();
  if (!is_last()) {
    while (!rendezvous_->Over()) Sleep(5);
  }
  LeaveRound();
  NextRound();
  EXPECT_FALSE(rendezvous_->Over());
  AwaitAll();
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_P(MpiRendezvousTest, WaitingForALateRankSleeps) {
  Make();
  LeaveRound();
  constexpr int kLateMs = 500;
  if (rank() == 0) Sleep(kLateMs);
  const double before = CpuSeconds();
  NextRound();
  EXPECT_LT(CpuSeconds() - before, 1e-3 * kLateMs / 4);
}

TEST_P(MpiRendezvousTest, MissingRanksAreNamed) {
  Make();
  LeaveRound();
  if (rank() == 0) {
    const auto round = rendezvous_->Next(0, absl::Milliseconds(20));
    EXPECT_EQ(round.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(round.status().message()), ::testing::HasSubstr("rank 1 ("));
  } else {
    while (!rendezvous_->Over()) Sleep(5);
  }
}

TEST_P(MpiRendezvousTest, NobodyWaitsForARankThatLeft) {
  Make();
  LeaveRound();
  if (is_last()) {
    rendezvous_->Leave();
  } else {
    const auto round = rendezvous_->Next(0, kPatience);
    EXPECT_EQ(round.status().code(), absl::StatusCode::kCancelled);
  }
}

TEST_P(MpiRendezvousTest, ManyRounds) {
  Make();
  for (int round = 0; round < 10; ++round) {
    float value = 1;
    EXPECT_TRUE(tp_->AllReduceSum(&value, 1).ok());
    AwaitAll();
    LeaveRound();
    NextRound();
  }
  ExpectGroupsWork();
}

INSTANTIATE_TEST_SUITE_P(Options, MpiRendezvousTest, ::testing::ValuesIn(kOptions));

}  // namespace
}  // namespace lockstep::testing
