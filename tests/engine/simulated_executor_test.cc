// The simulated replica: its clock, its loss, and that it notices wrong plans, on which all other
// engine tests rely.
#include "runtime/engine/simulated_executor.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/engine/engine_driver.h"

namespace lockstep::engine {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);

SimulatedRankOptions TenBlocks() {
  return {.num_blocks = 10, .block_size = 4, .max_num_seqs = 4, .max_model_len = 40};
}

// A plan that opens slot 0 with the prompt 1, 2, ... 6 in blocks 3 and 5 and computes all of it.
StepPlan FirstPlan() {
  StepPlan plan;
  plan.step_id = 1;
  plan.opened.push_back(
      {.slot = 0, .sampling = {}, .tokens = {1, 2, 3, 4, 5, 6}, .num_prompt_tokens = 6});
  plan.grants.push_back({0, {3, 5}});
  plan.work.push_back({0, 6, true});
  return plan;
}

// The same prompt in slot 1, whose first block is said to be computed already.
StepPlan SharingPlan(int32_t block) {
  StepPlan plan;
  plan.step_id = 2;
  plan.opened.push_back({.slot = 1,
                         .sampling = {},
                         .tokens = {1, 2, 3, 4, 5, 6},
                         .num_prompt_tokens = 6,
                         .num_computed_tokens = 4});
  plan.grants.push_back({1, {block, 7}});
  plan.work.push_back({1, 2, true});
  return plan;
}

class SimulatedRankTest : public ::testing::Test {
 protected:
  FakeLanguageModel model_{7, kVocabSize, {0}};
  SimulatedRank rank_{TenBlocks(), model_};
};

TEST_F(SimulatedRankTest, SamplesWhatTheModelSays) {
  const StepResult result = rank_.Execute(FirstPlan(), 0);
  ASSERT_EQ(result.sampled.size(), 1u);
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(result.sampled[0].token, model_.Generate(prompt, {}, 0, 40)[0]);
}

TEST_F(SimulatedRankTest, AcceptsASharedPrefix) {
  rank_.Execute(FirstPlan(), 0);
  rank_.Execute(SharingPlan(3), 0);
}

TEST_F(SimulatedRankTest, WithoutContentsItCountsAsWithThem) {
  SimulatedRankOptions options = TenBlocks();
  options.has_contents = false;
  SimulatedRank counting(options, model_);
  StepPlan chunk = FirstPlan();
  chunk.work[0] = {0, 4, false};
  StepPlan rest;
  rest.step_id = 2;
  rest.work.push_back({0, 2, true});
  StepPlan decode;
  decode.step_id = 3;
  decode.work.push_back({0, 1, true});
  for (const StepPlan& plan : {chunk, rest, decode}) {
    const StepResult result = counting.Execute(plan, plan.step_id - 1);
    EXPECT_EQ(result.sampled.size(), rank_.Execute(plan, plan.step_id - 1).sampled.size());
    for (const SampledToken& sampled : result.sampled) EXPECT_EQ(sampled.token, 0);
    EXPECT_EQ(counting.slot(0).computed, rank_.slot(0).computed);
    EXPECT_EQ(counting.slot(0).num_tokens, rank_.slot(0).num_tokens);
  }
  EXPECT_EQ(counting.slot(0).num_tokens, 8);
}

using SimulatedRankDeathTest = SimulatedRankTest;

TEST_F(SimulatedRankDeathTest, NoticesASharedBlockOfOtherTokens) {
  rank_.Execute(FirstPlan(), 0);
  EXPECT_DEATH(rank_.Execute(SharingPlan(5), 0), "reads block 5");
}

TEST_F(SimulatedRankDeathTest, NoticesABlockInUseGrantedAgain) {
  rank_.Execute(FirstPlan(), 0);
  StepPlan plan = FirstPlan();
  plan.step_id = 2;
  plan.opened[0].slot = plan.grants[0].slot = plan.work[0].slot = 1;
  plan.opened[0].tokens[2] = 50;
  rank_.Execute(plan, 1);
  StepPlan decode;
  decode.step_id = 3;
  decode.work.push_back({0, 1, true});
  EXPECT_DEATH(rank_.Execute(decode, 2), "reads block 3");
}

TEST_F(SimulatedRankDeathTest, NoticesAPrefixComputedInTheSameStep) {
  StepPlan plan = FirstPlan();
  const StepPlan sharing = SharingPlan(3);
  plan.opened.push_back(sharing.opened[0]);
  plan.grants.push_back(sharing.grants[0]);
  plan.work.push_back(sharing.work[0]);
  EXPECT_DEATH(rank_.Execute(plan, 0), "reads block 3");
}

TEST_F(SimulatedRankDeathTest, NoticesMissingBlocksSlotsAndTokens) {
  StepPlan plan = FirstPlan();
  plan.grants[0].blocks.pop_back();
  EXPECT_DEATH(rank_.Execute(plan, 0), "lacks blocks");
  plan = FirstPlan();
  plan.work[0].slot = 2;
  EXPECT_DEATH(rank_.Execute(plan, 0), "slot 2");
  plan = FirstPlan();
  plan.work[0].num_tokens = 7;
  EXPECT_DEATH(rank_.Execute(plan, 0), "no such token");
  plan = FirstPlan();
  plan.work[0].num_tokens = 5;
  EXPECT_DEATH(rank_.Execute(plan, 0), "CHECK failed");
  plan = FirstPlan();
  plan.step_id = 2;
  EXPECT_DEATH(rank_.Execute(plan, 0), "without holes");
}

TEST(SimulatedPipelineDeathTest, NoticesADecodeTooEarlyForThePipeline) {
  const FakeLanguageModel model(7, kVocabSize, {0});
  SimulatedRankOptions options = TenBlocks();
  options.pipeline_depth = 2;
  SimulatedRank rank(options, model);
  rank.Execute(FirstPlan(), 0);
  StepPlan decode;
  decode.step_id = 2;
  decode.work.push_back({0, 1, true});
  EXPECT_DEATH(rank.Execute(decode, 0), "decodes at step 2 after step 1");
  EXPECT_EQ(rank.Execute(decode, 1).sampled.size(), 1u);  // its token is back
}

EngineConfig ConfigFor(int pipeline_depth) {
  EngineConfig config;
  config.num_blocks = 1000;
  config.block_size = 4;
  config.max_model_len = 400;
  config.pipeline_depth = pipeline_depth;
  config.max_steps_in_flight = pipeline_depth + 1;
  return config;
}

EngineRequest Request(uint64_t id, int num_tokens) {
  EngineRequest request;
  request.request_id = id;
  request.prompt = {static_cast<int32_t>(id)};
  request.sampling.max_tokens = num_tokens;
  return request;
}

TEST(SimulatedExecutorTest, StepTakesWhatItsTokensAndContextCost) {
  EngineDriver driver(ConfigFor(1), {.base = 5 * kMs, .per_token = kMs, .per_context_token = kMs});
  ASSERT_TRUE(driver.Add(Request(1, 3)).ok());
  const absl::Time start = driver.now();
  driver.RunToEnd();
  // Contexts of 1, 2 and 3 tokens.
  EXPECT_EQ(driver.now() - start, (5 + 1 + 1) * kMs + (5 + 1 + 2) * kMs + (5 + 1 + 3) * kMs);
}

// 16 sequences over 4 stages: a token takes four micro-batches of four sequences when they are
// spread evenly, and four times as long when they travel together.
TEST(SimulatedExecutorTest, SpreadSequencesKeepThePipelineFull) {
  EngineDriver driver(ConfigFor(4), {.base = {}, .per_token = 4 * kMs, .per_context_token = {}});
  for (int id = 1; id <= 16; ++id) ASSERT_TRUE(driver.Add(Request(id, 101)).ok());
  const absl::Time start = driver.now();
  driver.RunToEnd();
  driver.ExpectSameAsAlone();
  const absl::Duration ideal = 100 * 16 * kMs;
  EXPECT_GE(driver.now() - start, ideal);
  EXPECT_LE(driver.now() - start, 1.1 * ideal);
}

TEST(SimulatedExecutorTest, LostReplicaDeliversWhatWasDoneAndNothingMore) {
  EngineDriver driver(ConfigFor(1), {.base = kMs, .per_token = {}, .per_context_token = {}});
  ASSERT_TRUE(driver.Add(Request(1, 20)).ok());
  driver.Submit();  // two steps in flight
  SimulatedExecutor& replica = driver.replica();
  replica.AdvanceTo(driver.now() + kMs);
  replica.LoseReplica();
  EXPECT_EQ(replica.NextResultTime(), absl::InfiniteFuture());
  EXPECT_TRUE(replica.TakeResult().value().has_value());
  EXPECT_EQ(replica.TakeResult().status().code(), absl::StatusCode::kUnavailable);
  driver.LoseReplica();
  driver.RunToEnd();
  driver.ExpectSameAsAlone();
}

}  // namespace
}  // namespace lockstep::engine
