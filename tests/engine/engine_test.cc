// Requests from Add to their end.
#include "tests/engine/engine_fixture.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(EngineTest, StopFoundLateDiscardsOnlyTheTokensInFlight) {
  Add(Prompt(1, 4));
  Next();
  Next();
  const auto events = Commit(/*token=*/0);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].token->token, 0);
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_EQ(events[0].stop_token_id, 0);
  EXPECT_EQ(engine_->Stats().blocks_in_use, 0);
  EXPECT_FALSE(engine_->Idle());
  EXPECT_THAT(Commit(), IsEmpty());
  EXPECT_TRUE(engine_->Idle());
}

TEST_F(EngineTest, NeverSchedulesBeyondMaxTokens) {
  Add(Prompt(1, 4, /*max_tokens=*/2));
  Next();
  Next();
  EXPECT_TRUE(NothingToDo());
  EXPECT_FALSE(Commit()[0].finish.has_value());
  EXPECT_TRUE(NothingToDo());
  EXPECT_EQ(Commit()[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, EndsExactlyAtMaxModelLen) {
  EngineConfig config = SmallConfig();
  config.max_model_len = 6;
  Start(config);
  Add(Prompt(1, 4, /*max_tokens=*/100));
  Next();
  Next();
  EXPECT_FALSE(Commit()[0].finish.has_value());
  EXPECT_TRUE(NothingToDo());
  EXPECT_EQ(Commit()[0].finish, FinishReason::kLength);
}

TEST_F(EngineTest, WholeCacheHoldsOneSequenceOfFullLength) {
  // 40 tokens in ten blocks; the last one is never fed back.
  EngineConfig config = SmallConfig();
  config.max_model_len = 41;
  Start(config);
  Add(Prompt(1, 30, /*max_tokens=*/100));
  std::optional<FinishReason> finish;
  int num_tokens = 0;
  while (!finish) {
    for (const EngineEvent& event : Step()) {
      ++num_tokens;
      finish = event.finish;
    }
  }
  EXPECT_EQ(finish, FinishReason::kLength);
  EXPECT_EQ(num_tokens, 11);
  EXPECT_EQ(engine_->Stats().num_preemptions, 0u);
}

TEST_F(EngineTest, StopTokensOfTheRequestEndIt) {
  EngineRequest request = Prompt(1, 4);
  request.sampling.stop_token_ids = {7, 9};
  Add(request);
  EXPECT_FALSE(Step(8)[0].finish.has_value());
  const auto events = Step(9);
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_EQ(events[0].stop_token_id, 9);
}

TEST_F(EngineTest, IgnoreEosIgnoresOnlyEos) {
  EngineRequest request = Prompt(1, 4);
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids = {7};
  Add(request);
  EXPECT_FALSE(Step(0)[0].finish.has_value());
  EXPECT_EQ(Step(7)[0].finish, FinishReason::kStop);
}

TEST_F(EngineTest, NoStopBeforeMinTokens) {
  EngineRequest request = Prompt(1, 4);
  request.sampling.min_tokens = 2;
  Add(request);
  EXPECT_FALSE(Step(0)[0].finish.has_value());
  EXPECT_FALSE(Step(0)[0].finish.has_value());
  EXPECT_EQ(Step(0)[0].finish, FinishReason::kStop);
}

TEST_F(EngineTest, StopTokenAtTheLengthLimitIsAStop) {
  Add(Prompt(1, 4, /*max_tokens=*/1));
  EXPECT_EQ(Step(0)[0].finish, FinishReason::kStop);
}

TEST_F(EngineTest, AnOutputGoesOnAfterWhatItHasEmitted) {
  EngineRequest request = Prompt(1, 4);
  request.emitted = {{21, 22, 23}};
  Add(request);
  const auto emitted = engine_->TakeEvents();
  ASSERT_EQ(emitted.size(), 1u);
  EXPECT_EQ(emitted[0].num_emitted, 3u);
  EXPECT_FALSE(emitted[0].token.has_value());
  EXPECT_FALSE(emitted[0].finish.has_value());
  const StepPlan plan = Next();
  ASSERT_EQ(plan.opened.size(), 1u);
  EXPECT_EQ(plan.opened[0].num_prompt_tokens, 4u);
  EXPECT_THAT(plan.opened[0].tokens, ElementsAre(31, 32, 33, 34, 21, 22, 23));
  EXPECT_THAT(plan.work, ElementsAre(Chunk(0, 7, true)));
  const auto events = Commit(0);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].num_emitted, 0u);
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_EQ(engine_->Stats().tokens_generated, 1u);
}

TEST_F(EngineTest, EmittedTokensThatEndTheirOutputsLeaveNothingToDo) {
  EngineRequest request = Prompt(1, 4, /*max_tokens=*/3);
  request.num_outputs = 2;
  request.emitted = {{21, 0, 22}, {21, 22, 23}};  // EOS and a token past it; as long as can be
  Add(request);
  EXPECT_TRUE(engine_->Idle());
  const auto events = engine_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].num_emitted, 2u);
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_EQ(events[0].stop_token_id, 0);
  EXPECT_EQ(events[1].num_emitted, 3u);
  EXPECT_EQ(events[1].finish, FinishReason::kLength);
  EXPECT_TRUE(NothingToDo());
}

TEST_F(EngineTest, EmittedTokensOfAnAbortedRequestAreNotTold) {
  EngineRequest request = Prompt(1, 4);
  request.emitted = {{21, 0}};
  Add(request);
  engine_->Abort(1);
  EXPECT_TRUE(engine_->TakeEvents().empty());
}

TEST_F(EngineTest, FullQueueRefusesAtOnce) {
  EngineConfig config = SmallConfig();
  config.max_queued_requests = 2;
  Start(config);
  Add(Prompt(1, 4));
  Add(Prompt(2, 4));
  EXPECT_EQ(engine_->Add(Prompt(3, 4)).code(), absl::StatusCode::kResourceExhausted);
  Next();  // both run now
  Add(Prompt(3, 4));
  engine_->Abort(3);
  Add(Prompt(4, 4));
  Add(Prompt(5, 4));
  EXPECT_EQ(engine_->Add(Prompt(6, 4)).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EngineTest, RefusesWhatCanNeverRunNamingValueAndLimit) {
  const auto message = [this](const EngineRequest& request) {
    const absl::Status status = engine_->Add(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Prompt(1, 0)), HasSubstr("empty"));
  EXPECT_THAT(message(Prompt(1, 40)), AllOf(HasSubstr("40 tokens"), HasSubstr("limited to 40")));
  EXPECT_THAT(message(Prompt(1, 4, 0)), HasSubstr("max_tokens is 0"));
  EngineRequest none = Prompt(1, 4);
  none.num_outputs = 0;
  EXPECT_THAT(message(none), HasSubstr("num_outputs is 0"));
  EngineRequest unknown = Prompt(1, 4);
  unknown.prompt[2] = 100;
  EXPECT_THAT(message(unknown), HasSubstr("prompt token id 100 is outside [0, 100)"));
  EngineRequest emitted = Prompt(1, 4);
  emitted.emitted = {{1, -1}};
  EXPECT_THAT(message(emitted), HasSubstr("emitted token id -1 is outside [0, 100)"));

  EngineConfig config = SmallConfig();
  config.max_model_len = 1000;
  Start(config);
  EXPECT_THAT(message(Prompt(1, 4, 38)), AllOf(HasSubstr("11 KV"), HasSubstr("cache has 10")));
  Add(Prompt(1, 4, 37));
  EXPECT_THAT(message(Prompt(1, 4)), HasSubstr("in use"));
}

TEST_F(EngineTest, AbortFreesBlocksBeforeTheNextPlanAndClosesTheSlotInIt) {
  Add(Prompt(1, 9));
  Add(Prompt(2, 4));
  Next();
  engine_->Abort(1);
  engine_->Abort(1);
  engine_->Abort(99);
  EXPECT_EQ(engine_->Stats().blocks_in_use, 1);
  EXPECT_THAT(Next().closed, ElementsAre(0));
  const auto events = Commit();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].request_id, 2u);
}

TEST_F(EngineTest, AbortSilencesEventsNotYetTaken) {
  Add(Prompt(1, 4));
  Next();
  ASSERT_TRUE(engine_->Commit(Answer(50)).ok());
  engine_->Abort(1);
  EXPECT_THAT(engine_->TakeEvents(), IsEmpty());
  EXPECT_TRUE(engine_->Idle());
}

TEST_F(EngineTest, FinishOutputEndsOneOutputOnly) {
  EngineRequest request = Prompt(1, 4);
  request.num_outputs = 2;
  Add(request);
  Step();
  Step();
  engine_->FinishOutput(1, 0);
  engine_->FinishOutput(1, 0);
  engine_->FinishOutput(1, 7);
  const auto events = Step();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].sequence_index, 1u);
  engine_->FinishOutput(1, 1);
  EXPECT_TRUE(engine_->Idle());
  EXPECT_EQ(engine_->Stats().blocks_in_use, 0);
}

TEST_F(EngineTest, WithoutATokenToChooseAnOutputEndsWithAnError) {
  Add(Prompt(1, 4));
  Step();
  Next();
  Next();  // one that counts on the token
  const auto events = Commit(kNoToken);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].finish, FinishReason::kError);
  EXPECT_FALSE(events[0].token.has_value());
  EXPECT_THAT(Commit(kNoToken), IsEmpty());
  EXPECT_EQ(engine_->Stats().tokens_generated, 1u);
  EXPECT_EQ(engine_->Stats().blocks_in_use, 0);
  EXPECT_TRUE(engine_->Idle());
}

TEST_F(EngineTest, DeadlineEndsEveryOutputAndFreesBlocks) {
  EngineRequest request = Prompt(1, 4);
  request.num_outputs = 2;
  request.deadline = now_ + absl::Seconds(5);
  Add(request);
  EXPECT_EQ(engine_->NextWakeup(), request.deadline);
  Step();
  now_ += absl::Seconds(5);
  EXPECT_TRUE(NothingToDo());
  const auto events = engine_->TakeEvents();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].finish, FinishReason::kDeadline);
  EXPECT_EQ(events[1].finish, FinishReason::kDeadline);
  EXPECT_EQ(engine_->Stats().blocks_in_use, 0);
  EXPECT_EQ(engine_->NextWakeup(), absl::InfiniteFuture());
  EXPECT_TRUE(engine_->Idle());
}

TEST_F(EngineTest, ResultThatDoesNotFitChangesNothing) {
  Add(Prompt(1, 4));
  Add(Prompt(2, 4));
  StepResult early;
  early.step_id = 1;
  EXPECT_EQ(engine_->Commit(early).code(), absl::StatusCode::kInternal);
  Next();

  StepResult wrong_step = Answer(50), wrong_slot = Answer(50), missing = Answer(50);
  StepResult extra = Answer(50), beyond = Answer(100), negative = Answer(-2);
  wrong_step.step_id = 2;
  wrong_slot.sampled[1].slot = 3;
  missing.sampled.pop_back();
  extra.sampled.push_back({2, 50, std::nullopt});
  StepResult strange_slot = Answer(50), before = Answer(50), after = Answer(50);
  strange_slot.prompt_logprobs = {{3, 1, {LogprobInfo()}}};
  before.prompt_logprobs = {{0, 0, {LogprobInfo()}}};
  after.prompt_logprobs = {{0, 3, {LogprobInfo(), LogprobInfo()}}};
  for (const StepResult& result :
       {wrong_step, wrong_slot, missing, extra, beyond, negative, strange_slot, before, after}) {
    EXPECT_EQ(engine_->Commit(result).code(), absl::StatusCode::kInternal);
    EXPECT_THAT(engine_->TakeEvents(), IsEmpty());
  }
  EXPECT_THAT(Commit(), SizeIs(2));
}

TEST_F(EngineTest, PromptLogprobsComeOnceAlsoAfterAReset) {
  EngineRequest request = Prompt(1, 20, 2);
  request.sampling.num_prompt_logprobs = 0;
  Add(request);
  const auto commit_with = [&](uint32_t first, int count) {
    StepResult result = Answer(50);
    result.prompt_logprobs = {{0, first, {}}};
    for (int i = 0; i < count; ++i) {
      result.prompt_logprobs[0].logprobs.push_back({-1.0f * static_cast<float>(first + i), {}});
    }
    ASSERT_TRUE(engine_->Commit(result).ok());
    plans_.pop_front();
  };
  Next();
  commit_with(1, 16);
  EXPECT_THAT(engine_->TakeEvents(), SizeIs(1));
  engine_->ResetReplica();
  Next();
  commit_with(1, 16);
  EXPECT_THAT(engine_->TakeEvents(), IsEmpty());
  Next();
  commit_with(17, 3);
  const auto events = engine_->TakeEvents();
  ASSERT_THAT(events, SizeIs(2));
  ASSERT_THAT(events[0].prompt_logprobs, SizeIs(3));
  EXPECT_EQ(events[0].prompt_logprobs[0].logprob, -17.0f);
}

TEST_F(EngineTest, ResetReplaysKnownTokensOnly) {
  Add(Prompt(1, 4));
  Next();
  Next();
  Commit(60);
  engine_->ResetReplica();
  engine_->CheckInvariants();
  EXPECT_EQ(engine_->Stats().steps_in_flight, 0);
  EXPECT_EQ(engine_->Stats().blocks_in_use, 0);
  EXPECT_EQ(engine_->Stats().blocks_cached, 0);
  EXPECT_EQ(engine_->Commit(Answer(61)).code(), absl::StatusCode::kInternal);
  plans_.clear();
  const StepPlan plan = Next();
  EXPECT_EQ(plan.step_id, 1u);
  EXPECT_THAT(plan.closed, IsEmpty());
  EXPECT_EQ(plan.opened[0].tokens, (std::vector<int32_t>{31, 32, 33, 34, 60}));
  EXPECT_EQ(plan.opened[0].num_prompt_tokens, 4u);
}

TEST_F(EngineTest, IdleHasNothingToDo) {
  EXPECT_TRUE(engine_->Idle());
  EXPECT_TRUE(NothingToDo());
  Add(Prompt(1, 4));
  EXPECT_FALSE(engine_->Idle());
}

// What waits would hold it many times.
TEST(SequenceTest, OutputsShareTheirPromptUntilTheyHaveTokens) {
  BlockPool pool(1);
  Request request(Prompt(1, 5));
  Sequence first(request, 0, pool);
  Sequence second(request, 1, pool);
  EXPECT_EQ(first.tokens().data(), request.given.prompt.data());
  EXPECT_EQ(second.tokens().data(), request.given.prompt.data());
  for (const int32_t token : {61, 62}) first.Append(token);
  EXPECT_EQ(first.num_output_tokens(), 2);
  EXPECT_EQ(first.tokens().subspan(5)[1], 62);
  EXPECT_EQ(second.length(), 5);
}

}  // namespace
}  // namespace lockstep::engine
