// How a rank meets the others before it dials.
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "runtime/worker/preflight.h"
#include "runtime/worker/worker.h"
#include "tests/worker/worker_fixture.h"

namespace lockstep::testing {
namespace {

using WorkerMeetingTest = WorkerTest;

TEST_F(WorkerMeetingTest, ARankThatLeavesTheRoundWhileOthersCompareIsMetAgain) {
  ScriptedController controller([&](Stream& stream) {
    Next(stream);
    ShutDown(stream);
    Next(stream);
    return grpc::Status::OK;
  });
  WorkerOptions options = Options(controller.address());
  options.grid = *ProcessGrid::Create(1, 2);
  options.rejoin_window = absl::Minutes(1);
  std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
  IdentityExchange exchange;
  absl::Status compared;
  std::thread other([&] {
    auto first = ranks[1]->Next(0, absl::Minutes(10));
    ASSERT_TRUE(first.ok()) << first.status();
    first->groups.pp->Abort();
    auto second = ranks[1]->Next(0, absl::Minutes(10));
    ASSERT_TRUE(second.ok()) << second.status();
    compared = exchange.Run(options.grid, second->groups, IdentityOf(options)).status();
  });
  const absl::Status status = RunWorker(options, *ranks[0]);
  EXPECT_TRUE(status.ok()) << status;
  ranks[0]->Leave();
  other.join();
  EXPECT_TRUE(compared.ok()) << compared;
}

// Rank 1 lost touch before it loaded, rank 0, which is faster, after.
TEST_F(WorkerMeetingTest, ALoadedRankTakesPartInThePreflightOfTheOthers) {
  int num_lives = 0;
  std::vector<v1::FromRank> second_life;
  ScriptedController controller([&](Stream& stream) {
    Next(stream);
    Welcome(stream);
    EXPECT_TRUE(++num_lives > 1 || Next(stream).has_preflight());
    if (num_lives > 1) second_life.push_back(Next(stream));
    if (!second_life.empty()) ShutDown(stream);
    EXPECT_TRUE(Next(stream).has_loaded());
    return grpc::Status(grpc::StatusCode::ABORTED, "the replica is lost");
  });
  WorkerOptions options = Options(controller.address());
  options.grid = *ProcessGrid::Create(1, 2);
  options.preflight = true;
  options.rejoin_window = absl::Minutes(1);
  std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
  std::vector<RankFacts> facts;
  std::deque<IdentityExchange> exchanges;
  std::deque<Rendezvous::Round> rounds;
  std::thread other([&] {
    for (int life = 1; life <= 2; ++life) {
      auto round = ranks[1]->Next(0, absl::Minutes(10));
      ASSERT_TRUE(round.ok()) << round.status();
      RankGroups& groups = rounds.emplace_back(*std::move(round)).groups;
      ASSERT_TRUE(exchanges.emplace_back().Run(options.grid, groups, IdentityOf(options)).ok());
      PreflightMemory memory;
      const auto gathered = GatherFacts(options.grid, groups, {.host = "there", .node = 1}, memory);
      ASSERT_TRUE(gathered.ok()) << "life " << life << ": " << gathered.status();
      facts.push_back(gathered->front());
      const auto backend = MakeReferenceBackend();
      ASSERT_TRUE(MeasureLinks(groups, *backend, memory).ok());
    }
  });
  const absl::Status status = RunWorker(options, *ranks[0]);
  other.join();
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(second_life.size(), 1u);
  EXPECT_TRUE(second_life[0].has_preflight());
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_GT(facts[0].needed_bytes, facts[1].needed_bytes);
  EXPECT_GT(facts[1].needed_bytes, 0) << "there is no cache yet";
}

// Ranks that take their time to come together.
class SlowRendezvous final : public Rendezvous {
 public:
  SlowRendezvous(Rendezvous& ranks, absl::Duration takes) : ranks_(ranks), takes_(takes) {}
  absl::StatusOr<Round> Next(uint64_t epoch, absl::Duration timeout) override {
    if (timeout < takes_) return absl::DeadlineExceededError("rank 1 did not come");
    absl::SleepFor(takes_);
    return ranks_.Next(epoch, timeout);
  }
  bool Over() override { return ranks_.Over(); }
  void Leave() override { ranks_.Leave(); }

 private:
  Rendezvous& ranks_;
  const absl::Duration takes_;
};

TEST_F(WorkerMeetingTest, WhatRanksTakeToComeTogetherIsNotTheControllersAbsence) {
  ScriptedController controller([](Stream& stream) {
    EXPECT_EQ(Next(stream).hello().secret(), "sesame");
    ShutDown(stream);
    Next(stream);
    return grpc::Status::OK;
  });
  WorkerOptions options = Options(controller.address());
  options.dial_timeout = absl::Seconds(3);
  std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
  SlowRendezvous slow(*ranks.front(), absl::Milliseconds(3100));
  const absl::Status status = RunWorker(options, slow);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace lockstep::testing
