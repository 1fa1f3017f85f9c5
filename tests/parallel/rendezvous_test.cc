#include "parallel/rendezvous.h"

#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/renewable_communicator.h"

namespace lockstep::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

class RendezvousTest : public ::testing::Test {
 protected:
  void MakeRanks(int tp, int pp) { ranks_ = MakeInProcessRendezvous(*ProcessGrid::Create(tp, pp)); }

  // Every rank calls Next with its own proposal.
  std::vector<absl::StatusOr<Rendezvous::Round>> AllNext(const std::vector<uint64_t>& epochs) {
    std::vector<absl::StatusOr<Rendezvous::Round>> rounds;
    for (size_t i = 0; i < ranks_.size(); ++i) rounds.emplace_back(absl::UnknownError(""));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { rounds[rank] = ranks_[rank]->Next(epochs[rank], kPatience); });
    }
    for (std::thread& thread : threads) thread.join();
    return rounds;
  }

  std::vector<std::unique_ptr<Rendezvous>> ranks_;
};

TEST_F(RendezvousTest, TheHighestProposedEpochCounts) {
  MakeRanks(2, 2);
  for (const uint64_t base : {10, 20}) {
    for (const auto& round : AllNext({base, base + 3, base + 1, base})) {
      ASSERT_TRUE(round.ok()) << round.status();
      EXPECT_EQ(round->epoch, base + 3);
    }
  }
}

TEST_F(RendezvousTest, GroupsOfARoundFollowTheGridAndKnowNothingOfTheLast) {
  MakeRanks(1, 2);
  auto first = AllNext({1, 1});
  const int32_t stale = 1, fresh = 2;
  ASSERT_TRUE(first[0]->groups.pp->Send(1, &stale, sizeof(stale)).ok());
  first[0]->groups.pp->Abort();
  auto second = AllNext({2, 2});
  EXPECT_EQ(second[1]->groups.pp->rank(), 1);
  EXPECT_EQ(second[1]->groups.tp->size(), 1);
  ASSERT_TRUE(second[0]->groups.pp->Send(1, &fresh, sizeof(fresh)).ok());
  int32_t received = 0;
  ASSERT_TRUE(second[1]->groups.pp->Recv(0, &received, sizeof(received)).ok());
  EXPECT_EQ(received, fresh);
}

TEST_F(RendezvousTest, OverOnceARankWaitsForTheNext) {
  MakeRanks(1, 2);
  const auto first = AllNext({1, 1});
  EXPECT_FALSE(ranks_[1]->Over());
  std::thread leaver([&] { EXPECT_TRUE(ranks_[0]->Next(2, kPatience).ok()); });
  while (!ranks_[1]->Over()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(ranks_[1]->Next(2, kPatience).ok());
  leaver.join();
  EXPECT_FALSE(ranks_[0]->Over());
  EXPECT_FALSE(ranks_[1]->Over());
}

TEST_F(RendezvousTest, MissingRanksAreNamed) {
  MakeRanks(2, 2);
  const auto round = ranks_[1]->Next(1, absl::Milliseconds(10));
  EXPECT_EQ(round.status().code(), absl::StatusCode::kDeadlineExceeded) << round.status();
  EXPECT_THAT(std::string(round.status().message()), ::testing::HasSubstr("ranks 0, 2, 3 of 4"));
}

TEST_F(RendezvousTest, NobodyWaitsForARankThatLeft) {
  MakeRanks(1, 2);
  std::thread leaver([&] { ranks_[0]->Leave(); });
  EXPECT_EQ(ranks_[1]->Next(1, kPatience).status().code(), absl::StatusCode::kCancelled);
  leaver.join();
}

TEST(RenewableCommunicatorTest, ARenewedBodyIsAliveAgain) {
  RenewableCommunicator group(MakeSelfCommunicator());
  group.Abort();
  float value = 1;
  EXPECT_EQ(group.AllReduceSum(&value, 1).code(), absl::StatusCode::kUnavailable);
  group.Renew(MakeSelfCommunicator());
  EXPECT_TRUE(group.AllReduceSum(&value, 1).ok());
}

}  // namespace
}  // namespace lockstep::testing
