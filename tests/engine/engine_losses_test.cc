// Requests that kill their ranks.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/killers.h"
#include "tests/engine/random_workload.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// What was known, and a token more.
constexpr int kStepsToTrust = 2;

class EngineLossesTest : public EngineTest {
 protected:
  std::optional<uint64_t> LoseReplica() {
    plans_.clear();
    return engine_->ResetReplica();
  }
  static EngineConfig OneSlot() {
    EngineConfig config = SmallConfig();
    config.max_num_seqs = 1;
    return config;
  }
  void AddTwoOutputsForOneSlot() {
    Start(OneSlot());
    EngineRequest two = Prompt(1, 3, 30);
    two.num_outputs = 2;
    Add(two);
  }
  // Prompts of the sequences that the next plan computes, by their length, and what they are given.
  std::vector<size_t> StepOf() {
    const StepPlan plan = Next();
    if (plan.step_id == 1) prompts_.clear();
    for (const SlotOpen& open : plan.opened) prompts_[open.slot] = open.num_prompt_tokens;
    std::vector<size_t> computed;
    for (const SlotWork& work : plan.work) computed.push_back(prompts_.at(work.slot));
    Commit();
    return computed;
  }

 private:
  std::map<uint32_t, size_t> prompts_;  // by slot
};

TEST_F(EngineLossesTest, AfterTwoLossesInARowRequestsRunOneByOneUntilTheyHaveComeFurther) {
  Add(Prompt(1, 3));
  Add(Prompt(2, 4));
  Next();
  EXPECT_EQ(LoseReplica(), std::nullopt);
  Next();
  EXPECT_THAT(plans_.front().work, SizeIs(2));
  EXPECT_EQ(LoseReplica(), std::nullopt);
  Add(Prompt(3, 5));  // was never there
  for (int step = 0; step < kStepsToTrust; ++step) EXPECT_THAT(StepOf(), ElementsAre(3));
  for (int step = 0; step < kStepsToTrust; ++step) EXPECT_THAT(StepOf(), ElementsAre(4));
  EXPECT_THAT(StepOf(), SizeIs(3));
}

TEST_F(EngineLossesTest, NothingRunsBesideTheStepsOfASuspect) {
  Add(Prompt(1, 3));
  Add(Prompt(2, 4));
  for (int loss = 0; loss < 2; ++loss) {
    Next();
    LoseReplica();
  }
  // The first one is trusted with its second token, while one step of it is under way.
  Next();
  Next();
  Commit();
  Next();
  Commit();
  EXPECT_TRUE(NothingToDo());
  Commit();
  EXPECT_THAT(Next().opened, SizeIs(1));
  EXPECT_THAT(plans_.front().closed, SizeIs(1));
}

TEST_F(EngineLossesTest, WhoWasAloneAtTheThirdLossIsBlamed) {
  Add(Prompt(1, 3));
  Add(Prompt(2, 4));
  for (int loss = 0; loss < 2; ++loss) {
    Next();
    EXPECT_EQ(LoseReplica(), std::nullopt);
  }
  Next();
  EXPECT_EQ(LoseReplica(), 1u);
  engine_->Abort(1);
  Next();
  EXPECT_EQ(LoseReplica(), 2u);
}

TEST_F(EngineLossesTest, ProgressBetweenLossesForgives) {
  Add(Prompt(1, 3, 30));
  for (int loss = 0; loss < 6; ++loss) {
    for (int step = 0; step < kStepsToTrust; ++step) Step();
    Next();
    EXPECT_EQ(LoseReplica(), std::nullopt) << "loss " << loss;
  }
}

TEST_F(EngineLossesTest, NothingIsAskedOfOutputsThatWaited) {
  AddTwoOutputsForOneSlot();
  for (int loss = 0; loss < 4; ++loss) {
    for (int step = 0; step < kStepsToTrust; ++step) Step();
    Next();
    EXPECT_EQ(LoseReplica(), std::nullopt) << "loss " << loss;
  }
}

// With the second loss it moves to another replica, which is lost once more.
TEST_F(EngineLossesTest, TheNextEngineAsksNothingOfThemEither) {
  AddTwoOutputsForOneSlot();
  for (int loss = 0; loss < 2; ++loss) {
    Next();
    LoseReplica();
  }
  std::vector<UnfinishedRequest> moving = engine_->Evacuate();
  Start(OneSlot());
  engine_->Adopt(std::move(moving.at(0)));
  for (int step = 0; step < kStepsToTrust; ++step) Step();
  Next();
  EXPECT_EQ(LoseReplica(), std::nullopt);
}

TEST_F(EngineLossesTest, ChunksOfAPromptAreProgress) {
  EngineConfig config = SmallConfig();
  config.max_batched_tokens = 4;
  config.max_steps_in_flight = 1;
  Start(config);
  Add(Prompt(1, 30));
  for (const int num_chunks : {0, 2, 4, 6}) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) Step();
    Next();
    EXPECT_EQ(LoseReplica(), std::nullopt) << "after " << num_chunks << " chunks";
  }
  Next();
  EXPECT_EQ(LoseReplica(), std::nullopt) << "not as far as before: it may be the killer";
  Next();
  EXPECT_EQ(LoseReplica(), 1u);
}

TEST_F(EngineLossesTest, LossesWhileItWaitedDoNotCount) {
  for (uint64_t id = 1; id <= 5; ++id) Add(Prompt(id, 3));  // the fifth finds no slot
  for (int loss = 0; loss < 2; ++loss) {
    Next();
    LoseReplica();
  }
  for (uint64_t id = 1; id <= 4; ++id) engine_->Abort(id);
  Add(Prompt(6, 3));
  EXPECT_THAT(Next().opened, SizeIs(2));
}

TEST_F(EngineLossesTest, LossesAreRememberedByTheNextEngine) {
  Add(Prompt(1, 3));
  for (int loss = 0; loss < 2; ++loss) {
    Next();
    LoseReplica();
  }
  std::vector<UnfinishedRequest> moving = engine_->Evacuate();
  ASSERT_THAT(moving, SizeIs(1));
  Engine next(SmallConfig());
  ASSERT_TRUE(next.Add(Prompt(2, 4)).ok());
  ASSERT_TRUE(next.Schedule(now_).has_value());
  next.Adopt(std::move(moving[0]));
  EXPECT_EQ(next.Schedule(now_), std::nullopt) << "beside the step of another";
  EXPECT_EQ(next.ResetReplica(), std::nullopt);
  EXPECT_TRUE(next.Schedule(now_).has_value());
  EXPECT_EQ(next.ResetReplica(), 1u);
}

TEST_F(EngineLossesTest, AnOutputThatEndedNeedComeNoFurther) {
  EngineRequest two = Prompt(1, 3);
  two.num_outputs = 2;
  Add(two);
  Add(Prompt(2, 4));
  for (int loss = 0; loss < 2; ++loss) {
    Step();
    Next();
    EXPECT_THAT(plans_.front().work, SizeIs(3)) << "both outputs, and the other request";
    LoseReplica();
  }
  engine_->FinishOutput(1, 1);
  for (int step = 0; step < kStepsToTrust; ++step) EXPECT_THAT(StepOf(), ElementsAre(3));
  EXPECT_THAT(StepOf(), ElementsAre(4));
}

TEST_F(EngineLossesTest, TheNextEngineKnowsHowFarItCame) {
  Add(Prompt(1, 3, 20));
  for (int step = 0; step < 4; ++step) Step();
  Next();
  LoseReplica();
  Next();
  LoseReplica();
  std::vector<UnfinishedRequest> moving = engine_->Evacuate();
  Start(SmallConfig());
  engine_->Adopt(std::move(moving.at(0)));
  Step();  // what was known
  Next();
  EXPECT_EQ(LoseReplica(), 1u);
}

// Drives requests, some of which kill, to their end; adds up losses and those blamed.
void RunKillers(uint64_t seed, int& num_losses, int& num_blamed) {
  RandomWorkload workload(seed);
  EngineDriver driver(workload.config());
  Killers killers;
  driver.OnPlan([&](const StepPlan& plan) { killers.See(plan); });
  std::set<uint64_t> deadly;
  const int losses_before = num_losses;
  uint64_t num_committed = 0;  // of this replica
  int left = 20;
  for (int i = 0; left > 0 || !driver.engine().Idle(); ++i) {
    ASSERT_LT(i, 50'000) << "it goes on for ever";
    if (left > 0 && workload.OneIn(2)) {
      EngineRequest request = workload.NextRequest(driver.model(), driver.now());
      request.deadline = absl::InfiniteFuture();
      --left;
      if (workload.OneIn(5)) {
        MakeKiller(request, workload.Between(0, 20));
        deadly.insert(request.request_id);
      }
      (void)driver.Add(std::move(request));  // what cannot run is refused
    }
    driver.Submit();
    const std::optional<uint64_t> deadly_step = killers.deadly_step();
    if (deadly_step && (num_committed + 1 == *deadly_step || workload.OneIn(3))) {
      const std::optional<uint64_t> blamed = driver.LoseReplica();
      killers = {};
      num_committed = 0;
      ++num_losses;
      if (!blamed) continue;
      ++num_blamed;
      EXPECT_TRUE(deadly.contains(*blamed)) << "request " << *blamed << " is blamed";
    } else if (driver.CommitNext()) {
      ++num_committed;
    }
  }
  driver.ExpectSameAsAlone();
  EXPECT_LE(num_losses - losses_before, 3 * static_cast<int>(deadly.size()));
}

TEST(EngineLosses, WhoKillsIsEndedAndOthersEndAsTheyDoAlone) {
  int num_losses = 0, num_blamed = 0;
  for (uint64_t seed = 0; seed < 400 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunKillers(seed, num_losses, num_blamed);
  }
  EXPECT_GT(num_losses, 1000);
  EXPECT_GT(num_blamed, 400);
}

}  // namespace
}  // namespace lockstep::engine
