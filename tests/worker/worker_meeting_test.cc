// How a rank meets the others before it dials.
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "kernels/cpu_backend_options.h"
#include "parallel/communicator.h"
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

// A group in which a wait that was aborted does not end, as one for a peer that is stopped in the
// middle of a message, until it is released.
class StubbornGroup final : public Communicator {
 public:
  StubbornGroup(std::unique_ptr<Communicator> body, const std::atomic<bool>& released)
      : body_(std::move(body)), released_(released) {}

  int rank() const override { return body_->rank(); }
  int size() const override { return body_->size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    return body_->AllReduceSum(data, count);
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    const absl::Status status = body_->AllGather(mine, bytes, all);
    const absl::Time deadline = SteadyNow() + absl::Seconds(30);
    while (!status.ok() && !released_ && SteadyNow() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return status;
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    return body_->Send(peer, data, bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    return body_->Recv(peer, data, bytes);
  }
  bool Probe(int peer) override { return body_->Probe(peer); }
  absl::Status Barrier() override { return body_->Barrier(); }
  void Abort() override { body_->Abort(); }

 private:
  const std::unique_ptr<Communicator> body_;
  const std::atomic<bool>& released_;
};

class StubbornRendezvous final : public Rendezvous {
 public:
  StubbornRendezvous(Rendezvous& ranks, const std::atomic<bool>& released)
      : ranks_(ranks), released_(released) {}
  absl::StatusOr<Round> Next(uint64_t epoch, absl::Duration timeout) override {
    ASSIGN_OR_RETURN(Round round, ranks_.Next(epoch, timeout));
    for (auto* group : {&round.groups.tp, &round.groups.pp}) {
      *group = std::make_unique<StubbornGroup>(std::move(*group), released_);
    }
    return round;
  }
  bool Over() override { return ranks_.Over(); }
  void Leave() override { ranks_.Leave(); }

 private:
  Rendezvous& ranks_;
  const std::atomic<bool>& released_;
};

TEST_F(WorkerMeetingTest, ARankThatIsStuckInThePreflightIsReported) {
  const std::string in_preflight = "checking ranks and links";
  ScriptedController controller([&](Stream& stream) {
    Next(stream);
    Welcome(stream);
    v1::FromRank message;
    while (stream.Read(&message) && message.heartbeat().operation() != in_preflight) {
    }
    return grpc::Status(grpc::StatusCode::ABORTED, "the replica is lost");
  });
  std::atomic<bool> is_stuck = false;
  WorkerOptions options = Options(controller.address());
  options.grid = *ProcessGrid::Create(1, 2);
  options.preflight = true;
  options.dial_timeout = options.rejoin_window = absl::Seconds(2);
  options.gather_timeout = absl::Seconds(1);
  options.on_stuck = [&](const absl::Status& status) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(in_preflight));
    is_stuck = true;
  };
  std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
  IdentityExchange exchange;
  absl::StatusOr<Rendezvous::Round> round = absl::UnknownError("none");
  std::thread other([&] {  // meets the rank once, and says nothing in the preflight
    round = ranks[1]->Next(0, absl::Minutes(10));
    ASSERT_TRUE(round.ok()) << round.status();
    ASSERT_TRUE(exchange.Run(options.grid, round->groups, IdentityOf(options)).ok());
  });
  StubbornRendezvous stubborn(*ranks[0], is_stuck);
  EXPECT_FALSE(RunWorker(options, stubborn).ok());
  other.join();
  EXPECT_TRUE(is_stuck);
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
