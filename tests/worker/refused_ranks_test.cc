// Ranks that differ among themselves or that the controller refuses: who ends, and who dials on.
#include <algorithm>
#include <functional>
#include <latch>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/wall_clock.h"
#include "tests/worker/rejoin_fixture.h"

namespace lockstep::testing {
namespace {

using RefusedRanksTest = RejoinTest;

// Before anything is built on their being alike.
TEST_F(RefusedRanksTest, RanksThatDifferAreNotHeardOfByTheController) {
  const std::pair<const char*, std::function<void(WorkerOptions&)>> changes[] = {
      {"has dtype bf16, rank 0 on here has f32: start all ranks with the same --dtype",
       [](auto& options) { options.stage.weights = WeightDType::kBF16; }},
      {"has --max-num-seqs 5, rank 0 on here has 4: start all ranks with the same",
       [](auto& options) { options.stage.limits.max_num_seqs = 5; }},
      {"has version 2, rank 0 on here has 1: install the same on all hosts",
       [](auto& options) { options.version = "2"; }},
  };
  for (const auto& [told, change] : changes) {
    change_last_ = change;
    for (const absl::Status& result : RunAgainst({[](Stream&, int) {}})) {
      EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition) << result;
      EXPECT_THAT(std::string(result.message()), ::testing::HasSubstr(told));
      EXPECT_THAT(std::string(result.message()), ::testing::HasSubstr("rank 3 on here"));
    }
    EXPECT_TRUE(epochs_.empty());
  }
}

// Those that have not found each other yet when a rank is refused are mpirun's to end.
TEST_F(RefusedRanksTest, ARefusalEndsRanksThatWereNeverWelcome) {
  std::latch all_have_come(grid_.world_size());
  FakeController controller(address(), {[&](Stream&, int) { all_have_come.arrive_and_wait(); }});
  controller.CloseWith({grpc::StatusCode::FAILED_PRECONDITION, "model b does not match"});
  for (const absl::Status& result : RunRanks()) {
    EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition) << result;
    EXPECT_THAT(std::string(result.message()), ::testing::HasSubstr("model b does not match"));
  }
  EXPECT_EQ(controller.epochs().size(), 1u);
}

// A wrong flag of one controller, which the next has right.
TEST_F(RefusedRanksTest, RefusedRanksWithWeightsDialOn) {
  FakeController controller(
      address(),
      {PrepareThen([](Stream&, int) {}),
       [&](Stream&, int) {
         controller.CloseWith({grpc::StatusCode::FAILED_PRECONDITION, "model b does not match"});
       },
       [](Stream&, int) {}, [](Stream&, int) {}, GenerateWithoutLoading()});
  ExpectRanksEndWell();
  EXPECT_EQ(controller.epochs().size(), 5u);
  const auto num_told =
      std::count_if(notices_.begin(), notices_.end(), [](const std::string& notice) {
        return notice.find("model b does not match") != std::string::npos;
      });
  EXPECT_GE(num_told, 1);
  EXPECT_LE(num_told, 3);  // again only where another cause was noticed first meanwhile
}

TEST_F(RefusedRanksTest, AClockThatIsSetDoesNotEndTheWindow) {
  grid_ = *ProcessGrid::Create(1, 1);
  FakeController controller(
      address(), {PrepareThen([](Stream&, int) {}),
                  [&](Stream&, int) {
                    SetWallClockAhead(1000);
                    controller.CloseWith({grpc::StatusCode::FAILED_PRECONDITION, "not yet"});
                  },
                  GenerateWithoutLoading()});
  ExpectRanksEndWell();
  SetWallClockAhead(0);
  EXPECT_EQ(controller.epochs().size(), 3u);
}

TEST_F(RefusedRanksTest, TheWindowEndsRefusedRanksWithTheReason) {
  rejoin_window_ = absl::Milliseconds(1500);
  grid_ = *ProcessGrid::Create(1, 1);
  FakeController controller(
      address(),
      {PrepareThen([](Stream&, int) {}), [&](Stream&, int) {
         controller.CloseWith({grpc::StatusCode::FAILED_PRECONDITION, "model b does not match"});
       }});
  WorkerOptions options = Options(0);
  options.dial_timeout = absl::ZeroDuration();
  const auto ranks = MakeInProcessRendezvous(grid_);
  const absl::Status result = RunWorker(options, *ranks[0]);
  EXPECT_GE(controller.epochs().size(), 4u);
  EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition) << result;
  EXPECT_THAT(std::string(result.message()), ::testing::HasSubstr("model b does not match"));
}

// They would count their epoch up until they oust those.
TEST_F(RefusedRanksTest, RanksWithWeightsWhosePlaceOthersHaveEnd) {
  FakeController controller(
      address(), {PrepareThen([](Stream&, int) {}), [&](Stream&, int) {
                    controller.CloseWith({grpc::StatusCode::ALREADY_EXISTS, "epoch 9 is over"});
                  }});
  grid_ = *ProcessGrid::Create(1, 1);
  const absl::Status result = RunRanks().front();
  EXPECT_EQ(result.code(), absl::StatusCode::kAlreadyExists) << result;
  EXPECT_THAT(std::string(result.message()), ::testing::HasSubstr("epoch 9 is over"));
  EXPECT_EQ(controller.epochs().size(), 2u);
}

TEST_F(RefusedRanksTest, ARefusalAfterTheWelcomeEndsRanksWithWeights) {
  FakeController controller(
      address(),
      {PrepareThen([](Stream&, int) {}), [&](Stream& stream, int) {
         Welcome(stream);
         EXPECT_TRUE(Next(stream).has_loaded());
         controller.CloseWith({grpc::StatusCode::RESOURCE_EXHAUSTED, "no room for 9 KV blocks"});
       }});
  grid_ = *ProcessGrid::Create(1, 1);
  const absl::Status result = RunRanks().front();
  EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition) << result;
  EXPECT_THAT(std::string(result.message()), ::testing::HasSubstr("no room for 9 KV blocks"));
  EXPECT_EQ(controller.epochs().size(), 2u);
}

}  // namespace
}  // namespace lockstep::testing
