// Ranks that lose their controller and find it again.
#include <chrono>
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/rejoin_fixture.h"

namespace lockstep::testing {
namespace {

TEST_F(RejoinTest, WhenAllStreamsCloseWhileIdle) {
  ExpectGoodEndAgainst({PrepareThen([](Stream&, int) {}), GenerateWithoutLoading()});
  ASSERT_EQ(epochs_.size(), 2u);
  EXPECT_GT(epochs_[1], epochs_[0]);
}

TEST_F(RejoinTest, WhenOneStreamClosesAndTheOthersStay) {
  for (const int loser : {0, 3}) {
    MakeAnew();
    ExpectGoodEndAgainst({PrepareThen([loser](Stream& stream, int rank) {
                            if (rank != loser) WaitForEnd(stream);
                          }),
                          GenerateWithoutLoading()});
  }
}

// Ranks with a plan wait for the one that has none, in a collective or for its messages.
TEST_F(RejoinTest, WhenAStreamClosesInMidStep) {
  for (const int idle : {0, 1, 3}) {
    for (const bool idle_loses : {true, false}) {
      MakeAnew();
      ExpectGoodEndAgainst(
          {PrepareThen([=](Stream& stream, int rank) {
             PlanWriter plan;
             if (rank != idle) {
               Send(stream, plan.Open(0, {1, 403}).Grant(0, {1}).Chunk(0, 2, true).Take());
             }
             if ((rank == idle) != idle_loses) WaitForEnd(stream);
           }),
           GenerateWithoutLoading()});
    }
  }
}

TEST_F(RejoinTest, WhenTheStreamClosesWhileLoading) {
  ExpectGoodEndAgainst({[](Stream& stream, int) { Welcome(stream); },
                        [this](Stream& stream, int rank) {
                          EXPECT_TRUE(Prepare(stream));
                          Generate(stream, rank);
                          EndRank(stream);
                        }});
}

TEST_F(RejoinTest, WhenTheStreamClosesAtHello) {
  const Script nothing = [](Stream&, int) {};
  ExpectGoodEndAgainst({nothing, nothing, [this](Stream& stream, int rank) {
                          EXPECT_TRUE(Prepare(stream));
                          Generate(stream, rank);
                          EndRank(stream);
                        }});
  EXPECT_EQ(epochs_.size(), 3u);
}

TEST_F(RejoinTest, ACacheOfAnotherSizeIsMadeAnew) {
  ExpectGoodEndAgainst({PrepareThen([](Stream&, int) {}), GenerateWithoutLoading(32)});
}

TEST_F(RejoinTest, ANewControllerAtTheOldAddressIsFound) {
  grid_ = *ProcessGrid::Create(1, 2);
  std::atomic<bool> all_ready = false;
  auto first = std::make_unique<FakeController>(
      address(), std::vector<Script>{PrepareThen([&](Stream& stream, int) {
        all_ready = true;
        WaitForEnd(stream);
      })});
  std::thread ranks([this] { ExpectRanksEndWell(); });
  while (!all_ready) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  first.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  FakeController second(address(), {GenerateWithoutLoading()});
  ranks.join();
}

TEST_F(RejoinTest, TheWindowEndsTheSearch) {
  rejoin_window_ = absl::Seconds(2);
  grid_ = *ProcessGrid::Create(1, 1);
  std::atomic<bool> is_over = false;
  auto controller = std::make_unique<FakeController>(
      address(), std::vector<Script>{PrepareThen([](Stream& stream, int) { WaitForEnd(stream); })});
  std::thread ender([&] {
    while (num_here_ < 1 && !is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    controller.reset();
  });
  WorkerOptions options = Options(0);
  options.dial_timeout = absl::ZeroDuration();
  const auto ranks = MakeInProcessRendezvous(grid_);
  const absl::Status result = RunWorker(options, *ranks[0]);
  is_over = true;
  ender.join();
  EXPECT_EQ(result.code(), absl::StatusCode::kUnavailable) << result;
  EXPECT_THAT(std::string(result.message()), ::testing::HasSubstr("no controller answers"));
}

// One rank hears of the shutdown, the other only that its stream is gone.
TEST_F(RejoinTest, AShutdownThatReachesSomeEndsAll) {
  grid_ = *ProcessGrid::Create(1, 2);
  ExpectGoodEndAgainst({PrepareThen([](Stream& stream, int rank) {
    if (rank == 0) EndRank(stream);
  })});
}

}  // namespace
}  // namespace lockstep::testing
