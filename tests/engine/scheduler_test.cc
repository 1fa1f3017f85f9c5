// What is in a plan, and why.
#include "tests/engine/engine_fixture.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using SchedulerTest = EngineTest;

TEST_F(SchedulerTest, FirstPlanOpensGrantsAndComputesThePrompt) {
  Add(Prompt(1, 5));
  const StepPlan plan = Next();
  EXPECT_EQ(plan.step_id, 1u);
  EXPECT_THAT(plan.closed, IsEmpty());
  ASSERT_THAT(plan.opened, SizeIs(1));
  EXPECT_EQ(plan.opened[0].tokens, Prompt(1, 5).prompt);
  EXPECT_EQ(plan.opened[0].num_prompt_tokens, 5u);
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 0u);
  ASSERT_THAT(plan.grants, SizeIs(1));
  EXPECT_THAT(plan.grants[0].blocks, SizeIs(2));
  EXPECT_THAT(plan.work, ElementsAre(Chunk(0, 5, true)));
}

TEST_F(SchedulerTest, DecodePlansAreDeltas) {
  Add(Prompt(1, 5));
  Step();
  for (int i = 0; i < 3; ++i) {  // positions 5, 6, 7 lie in the second block
    const StepPlan plan = Next();
    EXPECT_THAT(plan.opened, IsEmpty());
    EXPECT_THAT(plan.grants, IsEmpty());
    EXPECT_THAT(plan.work, ElementsAre(Decode(0)));
    Commit();
  }
  EXPECT_THAT(Next().grants, SizeIs(1));  // position 8 does not
}

TEST_F(SchedulerTest, LongPromptIsComputedInChunksAndSampledOnce) {
  Add(Prompt(1, 30));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 16, false)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 14, true)));
  EXPECT_THAT(Commit(), IsEmpty());
  EXPECT_THAT(Commit(), SizeIs(1));
}

TEST_F(SchedulerTest, DecodesComeBeforeChunksInTheBudgetAndAfterThemInThePlan) {
  Add(Prompt(1, 4));
  Step();
  Add(Prompt(2, 20));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 15, false), Decode(0)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 5, true), Decode(0)));
}

TEST_F(SchedulerTest, RunningPromptsComeBeforeAdmissions) {
  Add(Prompt(1, 14));
  Add(Prompt(2, 10));
  Add(Prompt(3, 3));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 14, true), Chunk(1, 2, false)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 8, true), Chunk(2, 3, true), Decode(0)));
}

TEST_F(SchedulerTest, PlansRunAheadOfResultsUpToTheLimit) {
  Add(Prompt(1, 4));
  Next();
  EXPECT_THAT(Next().work, ElementsAre(Decode(0)));  // of a token nobody knows yet
  EXPECT_TRUE(NothingToDo());
  Commit();
  EXPECT_THAT(Next().work, ElementsAre(Decode(0)));
}

TEST_F(SchedulerTest, AdmitsByPriorityThenArrival) {
  EngineConfig config = SmallConfig();
  config.max_num_seqs = 1;
  Start(config);
  Add(Prompt(1, 4, 1));
  Add(Prompt(2, 5, 1));
  EngineRequest urgent = Prompt(3, 6, 1);
  urgent.priority = -1;
  Add(urgent);
  std::vector<uint64_t> order;
  for (int i = 0; i < 3; ++i) order.push_back(Step()[0].request_id);
  EXPECT_THAT(order, ElementsAre(3, 1, 2));
}

TEST_F(SchedulerTest, BigHeadOfTheQueueIsNotOvertaken) {
  Add(Prompt(1, 20));
  Next();
  Commit();
  Add(Prompt(2, 24));  // six blocks; five are left
  Add(Prompt(3, 1));
  EXPECT_THAT(Next().opened, IsEmpty());
  engine_->Abort(1);
  EXPECT_EQ(Next().opened[0].tokens.size(), 24u);
}

TEST_F(SchedulerTest, LatestArrivalIsPreemptedAndLosesNothing) {
  Add(Prompt(1, 16, 20));
  Add(Prompt(2, 15, 20));  // 4 + 4 blocks; both need a sixth before they end
  Next();
  Next();
  std::vector<int32_t> tokens;
  while (engine_->Stats().num_preemptions == 0) {
    for (const auto& event : Commit(50 + static_cast<int>(tokens.size()))) {
      if (event.request_id == 2) tokens.push_back(event.token->token);
    }
    Next();
  }
  EXPECT_EQ(engine_->Stats().num_running, 1);
  // What the preempted one still sampled in flight is accepted.
  const size_t before = tokens.size();
  while (plans_.size() > 1) {
    for (const auto& event : Commit(70)) {
      if (event.request_id == 2) tokens.push_back(event.token->token);
    }
  }
  EXPECT_GT(tokens.size(), before);
  engine_->Abort(1);
  Commit();
  const StepPlan plan = Next();
  ASSERT_THAT(plan.opened, SizeIs(1));
  std::vector<int32_t> expected = Prompt(2, 15).prompt;
  expected.insert(expected.end(), tokens.begin(), tokens.end());
  EXPECT_EQ(plan.opened[0].tokens, expected);
  EXPECT_EQ(plan.opened[0].num_prompt_tokens, 15u);
}

TEST_F(SchedulerTest, LowestPriorityIsPreemptedFirst) {
  EngineRequest patient = Prompt(1, 16, 20);
  patient.priority = 1;
  Add(patient);
  Add(Prompt(2, 15, 20));
  while (engine_->Stats().num_preemptions == 0) Step();
  const auto events = Step();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].request_id, 2u);
}

TEST_F(SchedulerTest, KnownPrefixIsNotComputedAgain) {
  Add(Prompt(1, 10, 1));
  Step();
  EngineRequest same = Prompt(4, 10, 1);  // ids 1 and 4 begin alike
  Add(same);
  const StepPlan plan = Next();
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 8u);
  EXPECT_THAT(plan.work, ElementsAre(Chunk(plan.opened[0].slot, 2, true)));
  const auto events = Commit();
  EXPECT_EQ(events[0].num_cached_prompt_tokens, 8u);
  EXPECT_EQ(engine_->Stats().prompt_tokens_cached, 8u);
}

// Not the tokens of outputs, though a sequence that gave way computes them again in a chunk.
TEST_F(SchedulerTest, PromptTokensAreCountedWhateverStepsTheyAreIn) {
  Add(Prompt(1, 1));  // in a step like any decode
  Step();
  EXPECT_EQ(engine_->Stats().prompt_tokens_computed, 1u);
  Step();
  EXPECT_EQ(engine_->Stats().prompt_tokens_computed, 1u);
  Add(Prompt(2, 9));
  Step();
  EXPECT_EQ(engine_->Stats().prompt_tokens_computed, 10u);
  Add(Prompt(5, 9));  // of which eight are known
  Step();
  EXPECT_EQ(engine_->Stats().prompt_tokens_computed, 11u);
}

TEST_F(SchedulerTest, RunningSequencesShareBlocks) {
  Add(Prompt(1, 9));
  Step();
  Add(Prompt(4, 9));
  Next();
  EXPECT_EQ(engine_->Stats().blocks_in_use, 4);  // two shared, one each
}

// Both arrive before the prefix that they share has a name.
TEST_F(SchedulerTest, WhoFoundNoRoomIsAskedAgainWhenItsPrefixBecomesKnown) {
  EngineConfig config = SmallConfig();
  config.max_batched_tokens = 40;
  Start(config);
  Add(Prompt(1, 20));
  Add(Prompt(4, 20));
  EXPECT_THAT(Next().opened, SizeIs(1));  // five blocks of ten, and one to grow
  const StepPlan plan = Next();
  ASSERT_THAT(plan.opened, SizeIs(1));
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 16u);
}

TEST_F(SchedulerTest, LastKnownTokenIsAlwaysComputed) {
  Add(Prompt(1, 8, 1));
  Step();
  Add(Prompt(4, 8, 1));
  const StepPlan plan = Next();
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 4u);
  EXPECT_THAT(plan.work, ElementsAre(Chunk(plan.opened[0].slot, 4, true)));
}

TEST_F(SchedulerTest, OutputIsCachedToo) {
  Add(Prompt(1, 6, 4));
  std::vector<int32_t> prompt = Prompt(1, 6).prompt;
  for (int32_t token : {61, 62, 63, 64}) {
    Step(token);
    prompt.push_back(token);
  }
  EngineRequest next = Prompt(2, 10);
  next.prompt = prompt;
  Add(next);
  EXPECT_EQ(Next().opened[0].num_computed_tokens, 8u);
}

TEST_F(SchedulerTest, SaltKeepsTenantsApart) {
  Add(Prompt(1, 10, 1));
  Step();
  EngineRequest same = Prompt(4, 10, 1);
  same.cache_salt = "other";
  Add(same);
  EXPECT_EQ(Next().opened[0].num_computed_tokens, 0u);
}

TEST_F(SchedulerTest, PromptLogprobsComputeTheWholePrompt) {
  Add(Prompt(1, 10, 1));
  Step();
  EngineRequest same = Prompt(4, 10, 1);
  same.sampling.num_prompt_logprobs = 0;
  Add(same);
  const StepPlan plan = Next();
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 0u);
  EXPECT_EQ(plan.opened[0].sampling.num_prompt_logprobs, 0);
}

TEST_F(SchedulerTest, OutputsOfOneRequestComputeTheirPromptOnce) {
  EngineRequest request = Prompt(1, 17);
  request.num_outputs = 3;
  Add(request);
  EXPECT_THAT(Next().opened, SizeIs(1));
  EXPECT_EQ(engine_->Stats().num_waiting, 2);
  const StepPlan plan = Next();
  EXPECT_THAT(plan.opened, IsEmpty());  // the first one's last prompt token
  const StepPlan siblings = (Commit(), Next());
  ASSERT_THAT(siblings.opened, SizeIs(2));
  EXPECT_EQ(siblings.opened[0].num_computed_tokens, 16u);
  EXPECT_EQ(siblings.opened[1].num_computed_tokens, 16u);
  EXPECT_EQ(siblings.opened[1].sequence_index, 2u);
  EXPECT_EQ(engine_->Stats().prompt_tokens_cached, 0u);  // nothing was there before
}

TEST_F(SchedulerTest, SiblingsGoOnWhenTheFirstOutputEndsEarly) {
  EngineRequest request = Prompt(1, 20);
  request.num_outputs = 3;
  Add(request);
  Next();
  engine_->FinishOutput(1, 0);
  const StepPlan plan = Next();
  ASSERT_THAT(plan.opened, SizeIs(1));
  EXPECT_EQ(plan.opened[0].sequence_index, 1u);
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 16u);
}

TEST_F(SchedulerTest, WithoutCacheOutputsDoNotWaitForEachOther) {
  EngineConfig config = SmallConfig();
  config.enable_prefix_cache = false;
  Start(config);
  EngineRequest request = Prompt(1, 8);
  request.num_outputs = 2;
  Add(request);
  EXPECT_THAT(Next().opened, SizeIs(2));
}

// Of which only the last token is to be computed, so that the budget would take all.
TEST_F(SchedulerTest, PlanOpensFewKnownPrompts) {
  EngineConfig config = SmallConfig();
  config.max_opened_tokens = 20;
  Start(config);
  Add(Prompt(1, 9, 1));
  Step();
  for (const uint64_t id : {4, 7, 10}) Add(Prompt(id, 9));
  EXPECT_THAT(Next().opened, SizeIs(2));
  EXPECT_THAT(Next().opened, SizeIs(1));
}

TEST_F(SchedulerTest, PlanOpensFewConstraints) {
  EngineConfig config = SmallConfig();
  config.max_opened_tokens = 20;
  Start(config);
  for (const uint64_t id : {1, 2, 3}) {
    EngineRequest request = Prompt(id, 1);
    request.sampling.constraint = {OutputConstraint::Kind::kRegex, std::string(36, 'a')};
    Add(request);
  }
  EXPECT_THAT(Next().opened, SizeIs(2));
  EXPECT_THAT(Next().opened, SizeIs(1));
}

TEST_F(SchedulerTest, PromptLongerThanAPlanOpensGoesAlone) {
  EngineConfig config = SmallConfig();
  config.max_opened_tokens = 8;
  Start(config);
  Add(Prompt(1, 9));
  Add(Prompt(2, 1));
  EXPECT_THAT(Next().opened, SizeIs(1));
  EXPECT_THAT(Next().opened, SizeIs(1));
}

TEST_F(SchedulerTest, SlotIsOpenedByThePlanThatClosesItOnlyWhenNoOtherIsFree) {
  EngineConfig config = SmallConfig();
  config.max_num_seqs = 2;
  Start(config);
  Add(Prompt(1, 4, 1));
  Step();
  Add(Prompt(2, 4));
  StepPlan plan = Next();
  EXPECT_THAT(plan.closed, ElementsAre(0));
  EXPECT_EQ(plan.opened[0].slot, 1u);
  Commit();
  engine_->Abort(2);
  Add(Prompt(3, 4));
  Add(Prompt(4, 4));
  plan = Next();
  EXPECT_THAT(plan.closed, ElementsAre(1));
  ASSERT_THAT(plan.opened, SizeIs(2));
  EXPECT_EQ(plan.opened[0].slot, 0u);
  EXPECT_EQ(plan.opened[1].slot, 1u);
}

TEST_F(SchedulerTest, SequencesSpreadOverTheMicroBatches) {
  EngineConfig config = SmallConfig();
  config.pipeline_depth = 2;
  config.max_steps_in_flight = 3;
  Start(config);
  for (int id = 1; id <= 4; ++id) Add(Prompt(id, 3, 8));
  EXPECT_THAT(Next().work, SizeIs(4));
  EXPECT_TRUE(NothingToDo());  // all are inside the pipeline
  Commit();
  EXPECT_THAT(Next().work, ElementsAre(Decode(0), Decode(1)));
  EXPECT_THAT(Next().work, ElementsAre(Decode(2), Decode(3)));
  EXPECT_THAT(Next().work, ElementsAre(Decode(0), Decode(1)));
  EXPECT_TRUE(NothingToDo());
  Commit();
  EXPECT_THAT(Next().work, ElementsAre(Decode(2), Decode(3)));
}

TEST_F(SchedulerTest, ChunksOfOnePromptFollowEachOtherThroughThePipeline) {
  EngineConfig config = SmallConfig();
  config.pipeline_depth = 3;
  config.max_steps_in_flight = 4;
  Start(config);
  Add(Prompt(1, 36));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 16, false)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 16, false)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 4, true)));
  EXPECT_TRUE(NothingToDo());
}

}  // namespace
}  // namespace lockstep::engine
