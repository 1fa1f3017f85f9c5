// Requests that go from one serving replica to another.
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/controller/core_fixture.h"

namespace lockstep::testing {
namespace {

// Thirty blocks of four tokens.
class CoreMovesTest : public CoreTest {
 protected:
  // Ten blocks with what it says; no two begin alike.
  static std::vector<int32_t> Long(uint64_t number) {
    std::vector<int32_t> prompt(36);
    std::iota(prompt.begin(), prompt.end(), 1);
    prompt[0] = static_cast<int32_t>(number);
    return prompt;
  }
  static int NumOpened(const std::vector<v1::StepPlan>& plans) {
    int num_opened = 0;
    for (const v1::StepPlan& plan : plans) num_opened += plan.opened_size();
    return num_opened;
  }
};

TEST_F(CoreMovesTest, AReplicaThatServesLaterTakesWhatFindsNoRoomElsewhere) {
  Start(2);
  auto zero = Serve(0);
  for (uint64_t number = 1; number <= 5; ++number) ASSERT_TRUE(Add(number, Long(number), 4).ok());
  RunSteps(zero);  // the first; then three run, and the fourth finds no blocks
  auto one = Serve(1);
  const std::vector<v1::StepPlan> plans = one->TakePlans();
  ASSERT_EQ(NumOpened(plans), 1);
  EXPECT_EQ(plans[0].opened(0).tokens(0), 4);
  RunSteps(zero);  // with a step of its own it finds none for the fifth, either
  core_->CheckInvariants();
  core_->Cancel(4);
  core_->Advance(now_);
  EXPECT_EQ(core_->Status(now_).replicas(1).num_waiting(), 1);
}

TEST_F(CoreMovesTest, NobodyWaitsForACachedPrefixWhereThereIsRoomElsewhere) {
  max_num_seqs_ = 1;
  Start(2);
  auto zero = Serve(0);
  ASSERT_TRUE(Add(1, Long(1), 1).ok());
  RunSteps(zero);
  ASSERT_TRUE(Add(2, {40, 41}, 20).ok());
  auto one = Serve(1);
  ASSERT_TRUE(Add(3, Long(1), 4).ok());
  EXPECT_EQ(core_->Status(now_).replicas(0).num_waiting(), 0);
  EXPECT_EQ(NumOpened(one->TakePlans()), 1);
  ASSERT_TRUE(Add(4, Long(1), 4).ok());  // neither has a slot
  EXPECT_EQ(core_->Status(now_).replicas(0).num_waiting(), 1);
}

TEST_F(CoreMovesTest, AllAreAnsweredOnceByWhoeverHasRoom) {
  Start(2);
  auto zero = Serve(0);
  auto one = Serve(1);
  for (uint64_t number = 1; number <= 12; ++number) ASSERT_TRUE(Add(number, Long(number), 4).ok());
  Lose(one);  // all are replica 0's now
  core_->BeginEpoch(1, 2, now_);
  one = Serve(1, 2);
  int num_steps_of_one = 0;
  for (int i = 0; i < 100 && forgotten_.size() < 12; ++i) {
    RunSteps(zero);
    num_steps_of_one += RunSteps(one);
    core_->CheckInvariants();
  }
  ASSERT_EQ(forgotten_.size(), 12u);
  for (uint64_t number = 1; number <= 12; ++number) EXPECT_EQ(num_tokens_[number], 4) << number;
  EXPECT_GE(num_steps_of_one, 8);  // twice two requests, at least
  EXPECT_TRUE(ended_.empty());
}

}  // namespace
}  // namespace lockstep::testing
