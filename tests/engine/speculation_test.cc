// Guesses: which plans have them, and what becomes of them. Whether outputs stay the same is
// random_workload_test's question.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SpeculationTest : public EngineTest {
 protected:
  static EngineConfig Config() {
    EngineConfig config = SmallConfig();
    config.max_draft_tokens = 3;
    return config;
  }
  void SetUp() override { Start(Config()); }

  // The model says `continuation`, of which the first token is known after this.
  void Begin(std::vector<int32_t> prediction, int max_tokens = 20) {
    EngineRequest request = Prompt(1, 4, max_tokens);
    request.prediction = std::move(prediction);
    Add(std::move(request));
    Step(50);
  }
  // Of slot 0, and of slot 1.
  std::vector<EngineEvent> CommitTokens(const std::vector<int32_t>& tokens,
                                        const std::vector<int32_t>& others = {}) {
    StepResult result;
    result.step_id = plans_.front().step_id;
    for (const int32_t token : tokens) result.sampled.push_back({0, token, std::nullopt});
    for (const int32_t token : others) result.sampled.push_back({1, token, std::nullopt});
    const absl::Status status = engine_->Commit(result);
    EXPECT_TRUE(status.ok()) << status;
    plans_.pop_front();
    engine_->CheckInvariants();
    return engine_->TakeEvents();
  }
  static std::vector<int32_t> TokensOf(const std::vector<EngineEvent>& events) {
    std::vector<int32_t> tokens;
    for (const EngineEvent& event : events) tokens.push_back(event.token->token);
    return tokens;
  }
  static SlotWork Guess(std::vector<int32_t> drafts) { return {0, 1, true, std::move(drafts)}; }
};

TEST_F(SpeculationTest, WhatWasGuessedRightComesAtOnce) {
  Begin({50, 51, 52, 53, 54, 55});
  EXPECT_THAT(Next().work, ElementsAre(Guess({51, 52, 53})));
  EXPECT_THAT(TokensOf(CommitTokens({51, 52, 53, 54})), ElementsAre(51, 52, 53, 54));
  const StepPlan plan = Next();
  EXPECT_THAT(plan.settled, ElementsAre(SettledTokens{0, {51, 52, 53, 54}}));
  EXPECT_THAT(plan.work, ElementsAre(Guess({55})));
  EXPECT_EQ(engine_->Stats().draft_tokens, 4u);
  EXPECT_EQ(engine_->Stats().draft_tokens_accepted, 3u);
}

TEST_F(SpeculationTest, WhatComesAfterAWrongGuessIsDropped) {
  Begin({50, 51, 52, 53});
  Next();
  EXPECT_THAT(TokensOf(CommitTokens({51, 60, 53, 54})), ElementsAre(51, 60));
  const StepPlan plan = Next();
  EXPECT_THAT(plan.settled, ElementsAre(SettledTokens{0, {51, 60}}));
  EXPECT_THAT(plan.work, ElementsAre(Decode(0)));
}

TEST_F(SpeculationTest, NothingRunsAheadOfGuesses) {
  Begin({50, 51, 52, 53, 54, 55});
  Next();
  EXPECT_TRUE(NothingToDo());
  Commit(60);
  Next();  // there is nothing to guess now
  EXPECT_THAT(Next().work, ElementsAre(Decode(0)));
}

TEST_F(SpeculationTest, WhatATenantsOutputsSaidIsGuessed) {
  Begin({}, /*max_tokens=*/4);
  for (const int32_t token : {51, 52, 53}) Step(token);
  for (const char* salt : {"", "another"}) {
    EngineRequest request = Prompt(*salt == 0 ? 2 : 5, 3);
    request.prompt.back() = Prompt(1, 4).prompt.back();
    request.cache_salt = salt;
    Add(std::move(request));
    Step(50);
    const StepPlan plan = Next();
    const bool is_same = *salt == 0;
    EXPECT_THAT(plan.work.front().drafts, is_same ? SizeIs(3) : SizeIs(0)) << salt;
    const std::vector<EngineEvent> events = Commit(51);
    EXPECT_THAT(events, SizeIs(is_same ? 2 : 1));
    for (const EngineEvent& event : events) {  // of others' texts nothing is told
      EXPECT_FALSE(event.was_guessed);
      EXPECT_EQ(event.num_wrong_guesses, 0u);
    }
    engine_->Abort(is_same ? 2 : 5);
  }
}

TEST_F(SpeculationTest, OthersWaitWithItAndStayInOneStep) {
  Begin({50, 51, 52, 53, 54, 55, 56, 57});
  Add(Prompt(2, 3, 20));
  Next();
  CommitTokens({51, 52, 53}, {70});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(Next().work, SizeIs(2));
    EXPECT_TRUE(NothingToDo());
    if (i == 0) CommitTokens({54, 55, 56}, {71});
  }
}

TEST_F(SpeculationTest, AStopTokenEndsTheOutputAmongGuesses) {
  Begin({50, 51, 0, 53});
  Next();
  const std::vector<EngineEvent> events = CommitTokens({51, 0, 53, 54});
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].finish, FinishReason::kStop);
  EXPECT_TRUE(engine_->Idle());
}

TEST_F(SpeculationTest, NoGuessGoesBeyondTheEnd) {
  Begin({50, 51, 52, 53, 54, 55}, /*max_tokens=*/4);
  EXPECT_THAT(Next().work, ElementsAre(Guess({51, 52})));
  const std::vector<EngineEvent> events = CommitTokens({51, 52, 53});
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[2].finish, FinishReason::kLength);
}

TEST_F(SpeculationTest, ThoseThatWaitGoBeforeGuesses) {
  Begin({50, 51, 52, 53, 54, 55});
  for (uint64_t id = 2; id <= 3; ++id) Add(Prompt(id, 2));
  // Four slots: one runs, two come, one is left.
  EXPECT_THAT(Next().work, ElementsAre(Guess({51}), Chunk(1, 2, true), Chunk(2, 2, true)));
}

TEST_F(SpeculationTest, WhereThereIsLittleRoomTheFirstGuesses) {
  for (uint64_t id = 1; id <= 3; ++id) {
    EngineRequest request = Prompt(id, 2, 20);
    request.prediction = {50, 51, 52, 53};
    Add(std::move(request));
  }
  Step(50);
  const StepPlan plan = Next();
  EXPECT_THAT(plan.work, ElementsAre(Guess({51}), Decode(1), Decode(2)));
}

TEST_F(SpeculationTest, AnOutputsLastTokenIsNotWaitedFor) {
  Begin({50, 51, 52, 53, 54}, /*max_tokens=*/3);
  EngineRequest request = Prompt(2, 3, 20);
  Add(std::move(request));
  Next();
  CommitTokens({51, 52}, {70});
  Next();
  EXPECT_THAT(Next().work, SizeIs(1));  // ahead of the token before
}

TEST_F(SpeculationTest, NobodyIsPreemptedForGuesses) {
  EngineConfig config = Config();
  config.num_blocks = 4;
  Start(config);
  EngineRequest request = Prompt(1, 8);
  request.prediction = {50, 51, 52, 53, 54};
  Add(std::move(request));
  Add(Prompt(2, 3));
  Step(50);
  // Of four blocks one is left, which the first takes for its own next token.
  EXPECT_THAT(Next().work, ElementsAre(Guess({51, 52}), Decode(1)));
  EXPECT_EQ(engine_->Stats().num_preemptions, 0u);
}

TEST_F(SpeculationTest, ManyOutputsDoWithout) {
  EngineConfig config = Config();
  config.max_step_drafts = 3;
  Start(config);
  for (uint64_t id = 1; id <= 2; ++id) {
    EngineRequest request = Prompt(id, 4);
    request.prediction = {50, 51, 52, 53};
    Add(std::move(request));
  }
  Step(50);
  EXPECT_THAT(Next().work, ElementsAre(Decode(0), Decode(1)));
}

TEST_F(SpeculationTest, ALostReplicasGuessesAreForgotten) {
  Begin({50, 51, 52, 53, 54, 55});
  Next();
  engine_->ResetReplica();
  plans_.clear();
  const StepPlan plan = Next();
  EXPECT_THAT(plan.settled, IsEmpty());
  ASSERT_THAT(plan.opened, SizeIs(1));
  EXPECT_THAT(plan.opened[0].tokens, SizeIs(5));
}

TEST_F(SpeculationTest, ResultsMustFitTheGuesses) {
  Begin({50, 51, 52, 53, 54, 55});
  Next();
  StepResult result;
  result.step_id = plans_.front().step_id;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(engine_->Commit(result).ok(), i == 4) << i;
    if (i == 4) break;
    result.sampled.push_back({0, 51, std::nullopt});
  }
  EXPECT_THAT(TokensOf(engine_->TakeEvents()), ElementsAre(51, 51));
}

TEST_F(SpeculationTest, PredictionsAreTokens) {
  EngineRequest request = Prompt(1, 4);
  request.prediction = {100};
  EXPECT_FALSE(engine_->Add(request).ok());
  request.prediction.assign(41, 1);
  EXPECT_FALSE(engine_->Add(request).ok());
  request.prediction.assign(40, 1);
  EXPECT_TRUE(engine_->Add(request).ok());
}

}  // namespace
}  // namespace lockstep::engine
