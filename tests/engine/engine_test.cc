// The engine plan by plan, with tokens chosen by the test: block size 4, ten blocks, EOS is token
// 0.
#include "runtime/engine/engine.h"

#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

EngineConfig SmallConfig() {
  EngineConfig config;
  config.num_blocks = 10;
  config.block_size = 4;
  config.max_num_seqs = 4;
  config.max_batched_tokens = 16;
  config.max_model_len = 40;
  config.max_queued_requests = 8;
  config.eos_token_ids = {0};
  config.vocab_size = 100;
  return config;
}

// Consecutive tokens; ids that differ by a multiple of three begin alike.
EngineRequest Prompt(uint64_t id, int num_tokens, int max_tokens = 8) {
  EngineRequest request;
  request.request_id = id;
  request.prompt.resize(num_tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), 1 + 30 * static_cast<int>(id % 3));
  request.sampling.max_tokens = max_tokens;
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  void Start(const EngineConfig& config) { engine_ = std::make_unique<Engine>(config); }

  void Add(EngineRequest request) {
    const absl::Status status = engine_->Add(std::move(request), now_);
    ASSERT_TRUE(status.ok()) << status;
  }
  // The next plan, which must exist.
  StepPlan Next() {
    std::optional<StepPlan> plan = engine_->Schedule(now_);
    EXPECT_TRUE(plan.has_value());
    engine_->CheckInvariants();
    if (!plan) return {};
    plans_.push_back(*plan);
    return *plan;
  }
  bool NothingToDo() { return !engine_->Schedule(now_).has_value(); }

  // A result for the oldest plan in flight in which every sampled token is `token`.
  StepResult Answer(int32_t token) {
    StepResult result;
    result.step_id = plans_.front().step_id;
    for (const SlotWork& work : plans_.front().work) {
      if (work.sample) result.sampled.push_back({work.slot, token, std::nullopt});
    }
    return result;
  }
  // Commits it and returns what happened.
  std::vector<EngineEvent> Commit(int32_t token = 50) {
    const absl::Status status = engine_->Commit(Answer(token), now_);
    EXPECT_TRUE(status.ok()) << status;
    plans_.pop_front();
    engine_->CheckInvariants();
    return engine_->TakeEvents();
  }
  std::vector<EngineEvent> Step(int32_t token = 50) {
    Next();
    return Commit(token);
  }

  absl::Time now_ = absl::UnixEpoch();
  std::deque<StepPlan> plans_;
  std::unique_ptr<Engine> engine_ = std::make_unique<Engine>(SmallConfig());
};

SlotWork Chunk(uint32_t slot, uint32_t num_tokens, bool sample) {
  return {slot, num_tokens, sample};
}
SlotWork Decode(uint32_t slot) { return {slot, 1, true}; }

TEST_F(EngineTest, FirstPlanOpensGrantsAndComputesThePrompt) {
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

TEST_F(EngineTest, DecodePlansAreDeltas) {
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

TEST_F(EngineTest, LongPromptIsComputedInChunksAndSampledOnce) {
  Add(Prompt(1, 30));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 16, false)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 14, true)));
  EXPECT_THAT(Commit(), IsEmpty());
  EXPECT_THAT(Commit(), SizeIs(1));
}

TEST_F(EngineTest, DecodesComeBeforeChunksInTheBudgetAndAfterThemInThePlan) {
  Add(Prompt(1, 4));
  Step();
  Add(Prompt(2, 20));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 15, false), Decode(0)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 5, true), Decode(0)));
}

TEST_F(EngineTest, RunningPromptsComeBeforeAdmissions) {
  Add(Prompt(1, 14));
  Add(Prompt(2, 10));
  Add(Prompt(3, 3));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 14, true), Chunk(1, 2, false)));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 8, true), Chunk(2, 3, true), Decode(0)));
}

TEST_F(EngineTest, PlansRunAheadOfResultsUpToTheLimit) {
  Add(Prompt(1, 4));
  Next();
  EXPECT_THAT(Next().work, ElementsAre(Decode(0)));  // of a token nobody knows yet
  EXPECT_TRUE(NothingToDo());
  Commit();
  EXPECT_THAT(Next().work, ElementsAre(Decode(0)));
}

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

TEST_F(EngineTest, FullQueueRefusesAtOnce) {
  EngineConfig config = SmallConfig();
  config.max_queued_requests = 2;
  Start(config);
  Add(Prompt(1, 4));
  Add(Prompt(2, 4));
  EXPECT_EQ(engine_->Add(Prompt(3, 4), now_).code(), absl::StatusCode::kResourceExhausted);
  Next();  // both run now
  Add(Prompt(3, 4));
  engine_->Abort(3);
  Add(Prompt(4, 4));
  Add(Prompt(5, 4));
  EXPECT_EQ(engine_->Add(Prompt(6, 4), now_).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EngineTest, RefusesWhatCanNeverRunNamingValueAndLimit) {
  const auto message = [this](const EngineRequest& request) {
    const absl::Status status = engine_->Add(request, now_);
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
  EXPECT_THAT(message(unknown), HasSubstr("token id 100 is outside [0, 100)"));

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
  ASSERT_TRUE(engine_->Commit(Answer(50), now_).ok());
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

TEST_F(EngineTest, AdmitsByPriorityThenArrival) {
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

TEST_F(EngineTest, BigHeadOfTheQueueIsNotOvertaken) {
  Add(Prompt(1, 20));
  Next();
  Commit();
  Add(Prompt(2, 24));  // six blocks; five are left
  Add(Prompt(3, 1));
  EXPECT_THAT(Next().opened, IsEmpty());
  engine_->Abort(1);
  EXPECT_EQ(Next().opened[0].tokens.size(), 24u);
}

TEST_F(EngineTest, LatestArrivalIsPreemptedAndLosesNothing) {
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

TEST_F(EngineTest, LowestPriorityIsPreemptedFirst) {
  EngineRequest patient = Prompt(1, 16, 20);
  patient.priority = 1;
  Add(patient);
  Add(Prompt(2, 15, 20));
  while (engine_->Stats().num_preemptions == 0) Step();
  const auto events = Step();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].request_id, 2u);
}

TEST_F(EngineTest, KnownPrefixIsNotComputedAgain) {
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

TEST_F(EngineTest, RunningSequencesShareBlocks) {
  Add(Prompt(1, 9));
  Step();
  Add(Prompt(4, 9));
  Next();
  EXPECT_EQ(engine_->Stats().blocks_in_use, 4);  // two shared, one each
}

TEST_F(EngineTest, LastKnownTokenIsAlwaysComputed) {
  Add(Prompt(1, 8, 1));
  Step();
  Add(Prompt(4, 8, 1));
  const StepPlan plan = Next();
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 4u);
  EXPECT_THAT(plan.work, ElementsAre(Chunk(plan.opened[0].slot, 4, true)));
}

TEST_F(EngineTest, OutputIsCachedToo) {
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

TEST_F(EngineTest, SaltKeepsTenantsApart) {
  Add(Prompt(1, 10, 1));
  Step();
  EngineRequest same = Prompt(4, 10, 1);
  same.cache_salt = "other";
  Add(same);
  EXPECT_EQ(Next().opened[0].num_computed_tokens, 0u);
}

TEST_F(EngineTest, PromptLogprobsComputeTheWholePrompt) {
  Add(Prompt(1, 10, 1));
  Step();
  EngineRequest same = Prompt(4, 10, 1);
  same.sampling.num_prompt_logprobs = 0;
  Add(same);
  const StepPlan plan = Next();
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 0u);
  EXPECT_EQ(plan.opened[0].sampling.num_prompt_logprobs, 0);
}

TEST_F(EngineTest, OutputsOfOneRequestComputeTheirPromptOnce) {
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
}

TEST_F(EngineTest, SiblingsGoOnWhenTheFirstOutputEndsEarly) {
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

TEST_F(EngineTest, WithoutCacheOutputsDoNotWaitForEachOther) {
  EngineConfig config = SmallConfig();
  config.enable_prefix_cache = false;
  Start(config);
  EngineRequest request = Prompt(1, 8);
  request.num_outputs = 2;
  Add(request);
  EXPECT_THAT(Next().opened, SizeIs(2));
}

TEST_F(EngineTest, SlotIsOpenedByThePlanThatClosesItOnlyWhenNoOtherIsFree) {
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

TEST_F(EngineTest, SequencesSpreadOverTheMicroBatches) {
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

TEST_F(EngineTest, ChunksOfOnePromptFollowEachOtherThroughThePipeline) {
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

TEST_F(EngineTest, ResultThatDoesNotFitChangesNothing) {
  Add(Prompt(1, 4));
  Add(Prompt(2, 4));
  StepResult early;
  early.step_id = 1;
  EXPECT_EQ(engine_->Commit(early, now_).code(), absl::StatusCode::kInternal);
  Next();

  StepResult wrong_step = Answer(50), wrong_slot = Answer(50), missing = Answer(50);
  StepResult extra = Answer(50), beyond = Answer(100), negative = Answer(-1);
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
    EXPECT_EQ(engine_->Commit(result, now_).code(), absl::StatusCode::kInternal);
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
    ASSERT_TRUE(engine_->Commit(result, now_).ok());
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
  EXPECT_EQ(engine_->Commit(Answer(61), now_).code(), absl::StatusCode::kInternal);
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

}  // namespace
}  // namespace lockstep::engine
