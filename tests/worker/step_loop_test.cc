#include "runtime/worker/step_loop.h"

#include <limits>
#include <map>
#include <numeric>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/parallel/run_ranks.h"
#include "tests/worker/fake_constraints.h"
#include "tests/worker/fake_stage.h"
#include "tests/worker/plan_writer.h"

namespace lockstep {
namespace {

using testing::Constrained;
using ::testing::ElementsAre;
using testing::FakeConstrainedContinuation;
using testing::FakeContinuation;
using testing::PlanWriter;

struct Layout {
  int tp = 1;
  int pp = 1;
};

StepLoopOptions Options() {
  return {.limits = {.max_batched_tokens = 2048,
                     .max_num_seqs = 1200,
                     .max_model_len = 64,
                     .block_size = 4},
          .num_blocks = 2000,
          .vocab_size = testing::kFakeVocab,
          .eos_token_ids = {2}};
}

// Every plan is queued before the first runs: nothing but the ranks themselves can supply sampled
// tokens.
std::vector<engine::StepResult> RunPlans(const Layout& layout,
                                         const std::vector<engine::StepPlan>& plans,
                                         int64_t max_logits_rows = 256) {
  std::vector<engine::StepResult> results;  // written by one rank
  testing::RunRanks(layout.tp, layout.pp, [&](int, RankGroups& groups) -> absl::Status {
    testing::FakeStage stage(groups);
    testing::FakeConstraints constraints(groups);
    StepLoopOptions options = Options();
    options.constraints = constraints.cache();
    RankProgress progress;
    StepLoop loop(options, stage.Calls(max_logits_rows), groups, progress,
                  [&](engine::StepResult result) { results.push_back(std::move(result)); });
    PlanQueue queue;
    for (const engine::StepPlan& plan : plans) RETURN_IF_ERROR(queue.Push(plan));
    queue.Close();
    RETURN_IF_ERROR(loop.Run(queue));
    EXPECT_EQ(progress.Read().last_step, plans.size());
    return absl::OkStatus();
  });
  EXPECT_EQ(results.size(), plans.size());
  for (size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].step_id, i + 1);
  return results;
}

std::vector<int32_t> TokensOf(const std::vector<engine::StepResult>& results, uint32_t slot) {
  std::vector<int32_t> tokens;
  for (const engine::StepResult& result : results) {
    for (const engine::SampledToken& sampled : result.sampled) {
      if (sampled.slot == slot) tokens.push_back(sampled.token);
    }
  }
  return tokens;
}

class StepLoopTest : public ::testing::TestWithParam<Layout> {};

TEST_P(StepLoopTest, DecodesRunAheadOfTheirTokens) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  plans.push_back(
      plan.Open(0, {3, 1, 4, 1, 5}).Grant(0, {0, 1, 2, 3, 4, 5}).Chunk(0, 3, false).Take());
  plans.push_back(plan.Chunk(0, 2, true).Take());
  for (int i = 0; i < 12; ++i) plans.push_back(plan.Decode(0).Take());
  EXPECT_EQ(TokensOf(RunPlans(GetParam(), plans), 0), FakeContinuation({3, 1, 4, 1, 5}, 13));
}

TEST(StepLoopNumbers, RowsWithoutANumberAreReportedAndOthersGoOn) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  plans.push_back(plan.Open(0, {3, 1}).Grant(0, {0, 1}).Chunk(0, 2, true).Take());
  plans.push_back(plan.Decode(0).Take());
  std::vector<engine::StepResult> results;
  testing::RunRanks(1, 1, [&](int, RankGroups& groups) -> absl::Status {
    testing::FakeStage stage(groups);
    StageCalls calls = stage.Calls();
    std::vector<float> logits(testing::kFakeVocab, std::numeric_limits<float>::quiet_NaN());
    calls.logits = [&](int64_t, int64_t) -> absl::StatusOr<const float*> { return logits.data(); };
    RankProgress progress;
    StepLoop loop(Options(), calls, groups, progress, [&](engine::StepResult result) {
      results.push_back(std::move(result));
      logits[7] = 1.0f;
    });
    PlanQueue queue;
    for (const engine::StepPlan& each : plans) RETURN_IF_ERROR(queue.Push(each));
    queue.Close();
    return loop.Run(queue);
  });
  EXPECT_THAT(TokensOf(results, 0), ElementsAre(kNoToken, 7));
}

TEST_P(StepLoopTest, MicroBatchesAlternate) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  constexpr uint32_t kSlots = 6;
  for (uint32_t slot = 0; slot < kSlots; slot += 2) {
    for (const uint32_t s : {slot, slot + 1}) {
      const int32_t block = static_cast<int32_t>(s) * 8;
      plan.Open(s, {static_cast<int32_t>(s), 7}).Grant(s, {block, block + 1, block + 2});
      plan.Chunk(s, 2, true);
    }
    plans.push_back(plan.Take());
  }
  for (int round = 0; round < 8; ++round) {
    for (uint32_t slot = 0; slot < kSlots; slot += 2) {
      plans.push_back(plan.Decode(slot).Decode(slot + 1).Take());
    }
  }
  const std::vector<engine::StepResult> results = RunPlans(GetParam(), plans);
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    EXPECT_EQ(TokensOf(results, slot), FakeContinuation({static_cast<int32_t>(slot), 7}, 9));
  }
}

TEST_P(StepLoopTest, TokensOfALeftSequenceAreDiscarded) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  plans.push_back(plan.Open(0, {11}).Grant(0, {0, 1}).Decode(0).Take());
  plans.push_back(plan.Decode(0).Take());
  // The slot's next tenants come while tokens of the first are on their way.
  plans.push_back(plan.Close(0).Open(0, {22, 23}).Grant(0, {0, 1}).Chunk(0, 2, true).Take());
  plans.push_back(plan.Close(0).Open(0, {33}).Grant(0, {0, 1}).Decode(0).Take());
  plans.push_back(plan.Decode(0).Take());
  plans.push_back(plan.Decode(0).Take());
  const std::vector<int32_t> tokens = TokensOf(RunPlans(GetParam(), plans), 0);
  const std::vector<int32_t> third = FakeContinuation({33}, 3);
  ASSERT_EQ(tokens.size(), 6u);
  EXPECT_EQ(tokens[1], FakeContinuation({11}, 2)[1]);
  EXPECT_EQ(tokens[2], FakeContinuation({22, 23}, 1)[0]);
  EXPECT_EQ(std::vector<int32_t>(tokens.begin() + 3, tokens.end()), third);
}

TEST_P(StepLoopTest, ManySamplesOfOneStepTravelInSeveralMessages) {
  constexpr uint32_t kSlots = 1100;
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    plan.Open(slot, {static_cast<int32_t>(slot) % 90}).Grant(slot, {static_cast<int32_t>(slot)});
    plan.Decode(slot);
  }
  plans.push_back(plan.Take());
  for (int round = 0; round < 2; ++round) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) plan.Decode(slot);
    plans.push_back(plan.Take());
  }
  const std::vector<engine::StepResult> results = RunPlans(GetParam(), plans);
  for (uint32_t slot = 0; slot < kSlots; slot += 99) {
    EXPECT_EQ(TokensOf(results, slot), FakeContinuation({static_cast<int32_t>(slot) % 90}, 3));
  }
}

TEST_P(StepLoopTest, PromptLogprobsSpanTilesAndSteps) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  SamplingParams params = PlanWriter::Greedy();
  params.num_prompt_logprobs = 1;
  params.num_logprobs = 0;
  const std::vector<int32_t> likely = FakeContinuation({8}, 6);
  std::vector<int32_t> prompt = {8};
  prompt.insert(prompt.end(), likely.begin(), likely.end());
  plans.push_back(plan.Open(0, prompt, params).Grant(0, {0, 1}).Chunk(0, 5, false).Take());
  plans.push_back(plan.Chunk(0, 2, true).Take());
  const std::vector<engine::StepResult> results = RunPlans(GetParam(), plans, 2);
  ASSERT_EQ(results[0].prompt_logprobs.size(), 1u);
  ASSERT_EQ(results[1].prompt_logprobs.size(), 1u);
  EXPECT_EQ(results[0].prompt_logprobs[0].first_position, 1u);
  EXPECT_EQ(results[1].prompt_logprobs[0].first_position, 6u);
  ASSERT_EQ(results[0].prompt_logprobs[0].logprobs.size(), 5u);
  ASSERT_EQ(results[1].prompt_logprobs[0].logprobs.size(), 1u);
  for (size_t i = 0; i < 5; ++i) {
    const LogprobInfo& info = results[0].prompt_logprobs[0].logprobs[i];
    ASSERT_EQ(info.top.size(), 1u);
    EXPECT_EQ(info.top[0].token, prompt[i + 1]);  // the model agrees with this prompt
    EXPECT_EQ(info.top[0].logprob, info.logprob);
  }
  ASSERT_EQ(results[1].sampled.size(), 1u);
  ASSERT_TRUE(results[1].sampled[0].logprobs.has_value());
  EXPECT_LT(results[1].sampled[0].logprobs->logprob, 0.0f);
}

constexpr char kDates[] = "[0-9]{4}-[0-9]{2}(-[0-9]{2})?|[a-z]{3,9}!";

TEST_P(StepLoopTest, ConstrainedOutputsFitBesideOthers) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  const SamplingParams dates = Constrained(PlanWriter::Greedy(), kDates);
  plan.Open(0, {3, 1, 4}, dates).Grant(0, {0, 1, 2, 3, 4}).Chunk(0, 3, true);
  plan.Open(1, {5, 9}).Grant(1, {5, 6, 7, 8, 9}).Chunk(1, 2, true);
  plan.Open(2, {2, 6, 5}, Constrained(PlanWriter::Greedy(), "(ab|c)*"))
      .Grant(2, {10, 11, 12, 13, 14})
      .Chunk(2, 3, true);
  plans.push_back(plan.Take());
  for (int i = 0; i < 13; ++i) plans.push_back(plan.Decode(0).Decode(1).Decode(2).Take());
  const std::vector<engine::StepResult> results = RunPlans(GetParam(), plans);
  EXPECT_EQ(TokensOf(results, 0), FakeConstrainedContinuation({3, 1, 4}, kDates, 14));
  EXPECT_EQ(TokensOf(results, 1), FakeContinuation({5, 9}, 14));
  EXPECT_EQ(TokensOf(results, 2), FakeConstrainedContinuation({2, 6, 5}, "(ab|c)*", 14));
}

// Of nine tokens each step guesses two, some of them wrong, and is told what it chose.
TEST_P(StepLoopTest, GuessedOutputsAreConstrainedAndPenalizedAllTheSame) {
  SamplingParams penalized = Constrained(PlanWriter::Greedy(), kDates);
  penalized.frequency_penalty = 2.0f;
  const std::vector<int32_t> prompt = {3, 1, 4};
  const std::vector<int32_t> whole = FakeConstrainedContinuation(prompt, kDates, 9);
  for (const SamplingParams& sampling : {Constrained(PlanWriter::Greedy(), kDates), penalized}) {
    PlanWriter plan;
    std::vector<engine::StepPlan> plans;
    plan.Open(0, prompt, sampling).Grant(0, {0, 1, 2, 3, 4});
    plans.push_back(plan.Chunk(0, 3, true).Take());
    for (int i = 0; i < 8; ++i) plans.push_back(plan.Decode(0).Take());
    const std::vector<int32_t> expected = TokensOf(RunPlans(GetParam(), plans), 0);
    if (!HasPenalties(sampling)) {
      EXPECT_EQ(expected, whole);
    }

    for (const int32_t wrong_by : {0, 1}) {
      PlanWriter guessing;
      plans.clear();
      guessing.Open(0, prompt, sampling).Grant(0, {0, 1, 2, 3, 4});
      plans.push_back(guessing.Chunk(0, 3, true).Take());
      std::vector<int32_t> kept = {expected[0]};
      std::vector<size_t> num_kept = {1};
      while (kept.size() + 2 < expected.size()) {
        const size_t at = kept.size();
        std::vector<int32_t> drafts = {expected[at], expected[at + 1] ^ wrong_by};
        plans.push_back(guessing.Guess(0, drafts).Take());
        num_kept.push_back(wrong_by == 0 ? 3 : 2);
        const auto first = expected.begin() + static_cast<ptrdiff_t>(at);
        const std::vector<int32_t> settled(first, first + static_cast<ptrdiff_t>(num_kept.back()));
        kept.insert(kept.end(), settled.begin(), settled.end());
        guessing.Settle(0, settled);
      }
      const std::vector<engine::StepResult> results = RunPlans(GetParam(), plans);
      size_t at = 0;
      for (size_t step = 0; step < results.size(); ++step) {
        for (size_t i = 0; i < num_kept[step]; ++i, ++at) {
          EXPECT_EQ(results[step].sampled[i].token, expected[at]) << "output token " << at;
        }
      }
    }
  }
}

// As after a preemption: with whatever it had written, it writes the same.
TEST_P(StepLoopTest, ConstrainedOutputsGoOnFromTheTokensTheyHave) {
  const std::vector<int32_t> prompt = {3, 1, 4};
  const std::vector<int32_t> whole = FakeConstrainedContinuation(prompt, kDates, 9);
  for (size_t written = 1; written < whole.size(); ++written) {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), whole.begin(), whole.begin() + static_cast<ptrdiff_t>(written));
    const auto num_tokens = static_cast<uint32_t>(tokens.size());
    PlanWriter plan;
    std::vector<engine::StepPlan> plans;
    plan.Open(0, tokens, Constrained(PlanWriter::Greedy(), kDates), 3).Grant(0, {0, 1, 2, 3, 4});
    plans.push_back(plan.Chunk(0, num_tokens, true).Take());
    for (size_t i = written + 1; i < whole.size(); ++i) plans.push_back(plan.Decode(0).Take());
    EXPECT_EQ(TokensOf(RunPlans(GetParam(), plans), 0),
              std::vector<int32_t>(whole.begin() + static_cast<ptrdiff_t>(written), whole.end()));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, StepLoopTest,
                         ::testing::Values(Layout{1, 1}, Layout{2, 1}, Layout{1, 2}, Layout{2, 2},
                                           Layout{1, 3}, Layout{4, 1}),
                         [](const auto& info) {
                           return "tp" + std::to_string(info.param.tp) + "_pp" +
                                  std::to_string(info.param.pp);
                         });

TEST(StepLoop, StopsAtAMalformedPlan) {
  testing::RunRanks(1, 1, [&](int, RankGroups& groups) {
    testing::FakeStage stage(groups);
    RankProgress progress;
    StepLoop loop(Options(), stage.Calls(), groups, progress, [](engine::StepResult) {});
    PlanQueue queue;
    PlanWriter plan;
    EXPECT_TRUE(queue.Push(plan.Decode(0).Take()).ok());
    EXPECT_EQ(loop.Run(queue).code(), absl::StatusCode::kInvalidArgument);
    return absl::OkStatus();
  });
}

// What a stage is told of a plan's blocks: those that hold a cached prefix are only read.
TEST(StepLoop, TellsWhichBlocksAreGrantedAndWritten) {
  struct Told {
    std::vector<BlockCopy> offloaded;
    std::vector<BlockCopy> restored;
    std::vector<BlockCopy> prefetched;
    std::vector<int32_t> granted;
    std::vector<int32_t> written;
    bool operator==(const Told&) const = default;
  };
  PlanWriter writer;
  std::vector<engine::StepPlan> plans;
  writer.Open(0, std::vector<int32_t>(10, 5), PlanWriter::Greedy(), 10, /*num_computed_tokens=*/8);
  writer.Grant(0, {7, 8, 9}).Open(1, {4}).Grant(1, {6}).Chunk(0, 2, true).Chunk(1, 1, true);
  plans.push_back(writer.Take());
  plans.back().offloaded = {{7, 70}};
  plans.back().restored = {{8, 80}};
  plans.push_back(writer.Decode(0).Take());
  plans.push_back(writer.Decode(0).Grant(0, {3}).Take());
  plans.push_back(writer.Decode(0).Take());
  plans.back().prefetched = {{2, 20}};
  std::vector<Told> told;
  testing::RunRanks(1, 1, [&](int, RankGroups& groups) -> absl::Status {
    testing::FakeStage stage(groups);
    StageCalls calls = stage.Calls();
    calls.copy_blocks = [&](const StepBlocks& blocks) {
      told.push_back({{blocks.offloaded.begin(), blocks.offloaded.end()},
                      {blocks.restored.begin(), blocks.restored.end()},
                      {blocks.prefetched.begin(), blocks.prefetched.end()},
                      {blocks.granted.begin(), blocks.granted.end()},
                      {blocks.written.begin(), blocks.written.end()}});
      return absl::OkStatus();
    };
    RankProgress progress;
    StepLoop loop(Options(), calls, groups, progress, [](engine::StepResult) {});
    PlanQueue queue;
    for (const engine::StepPlan& plan : plans) RETURN_IF_ERROR(queue.Push(plan));
    queue.Close();
    return loop.Run(queue);
  });
  const std::vector<Told> want = {{{{7, 70}}, {{8, 80}}, {}, {7, 8, 9, 6}, {9, 6}},
                                  {{}, {}, {}, {3}, {3}},
                                  {{}, {}, {{2, 20}}, {}, {}}};
  EXPECT_EQ(told, want);
}

TEST(StepLoop, WithoutCopiesAPlanThatNamesSomeIsRefused) {
  PlanWriter writer;
  engine::StepPlan plan = writer.Open(0, {4}).Grant(0, {6}).Chunk(0, 1, true).Take();
  plan.prefetched = {{1, 1}};
  RankGroups groups{MakeSelfCommunicator(), MakeSelfCommunicator()};
  testing::FakeStage stage(groups);
  RankProgress progress;
  StepLoop loop(Options(), stage.Calls(), groups, progress, [](engine::StepResult) {});
  PlanQueue queue;
  ASSERT_TRUE(queue.Push(plan).ok());
  queue.Close();
  EXPECT_EQ(loop.Run(queue).code(), absl::StatusCode::kInvalidArgument);
}

TEST(StepLoop, EndsWhenAPeerIsGone) {
  std::vector<RankGroups> ranks = MakeInProcessGroups(*ProcessGrid::Create(1, 2));
  testing::FakeStage stage(ranks[1]);
  RankProgress progress;
  StepLoop loop(Options(), stage.Calls(), ranks[1], progress, [](engine::StepResult) {});
  PlanQueue queue;
  PlanWriter plan;
  ASSERT_TRUE(queue.Push(plan.Open(0, {1}).Grant(0, {0}).Decode(0).Take()).ok());
  std::thread other([&] { ranks[0].pp->Abort(); });
  EXPECT_EQ(loop.Run(queue).code(), absl::StatusCode::kUnavailable);
  other.join();
}

}  // namespace
}  // namespace lockstep
