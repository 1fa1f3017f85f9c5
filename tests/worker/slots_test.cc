#include "runtime/worker/slots.h"

#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/plan_writer.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PlanWriter;

// Block size 4, ten blocks, three slots, twelve tokens a step, sequences of at most sixteen.
SlotTableOptions Small() {
  return {
      .limits = {.max_batched_tokens = 12, .max_num_seqs = 3, .max_model_len = 16, .block_size = 4},
      .num_blocks = 10,
      .vocab_size = 100,
      .is_first_stage = true,
      .is_last_stage = true,
      .vocab = {.begin = 0, .end = 100}};
}

std::vector<std::vector<int32_t>> Fields(const std::vector<NewBlock>& blocks) {
  std::vector<std::vector<int32_t>> fields;
  for (const NewBlock& block : blocks)
    fields.push_back({block.table_row, block.index, block.block});
  return fields;
}

// Slot 0 has five tokens and has guessed two after them.
SlotTable WithGuesses(const SlotTableOptions& options, PlanWriter& plan) {
  SlotTable table(options);
  plan.Open(0, {10, 11, 12, 13}).Grant(0, {7, 3}).Chunk(0, 4, true);
  EXPECT_TRUE(table.Apply(plan.Take()).ok());
  if (!options.has_token_table) table.AppendSampled(table.sampled()[0], 14);
  plan.Guess(0, {20, 21});
  EXPECT_TRUE(table.Apply(plan.Take()).ok());
  if (options.is_first_stage) table.FillTokenIds();
  return table;
}

TEST(SlotTable, DraftsAreComputedAndATokenIsChosenAfterEach) {
  PlanWriter plan;
  const SlotTable table = WithGuesses(Small(), plan);
  EXPECT_THAT(table.batch().token_ids, ElementsAre(14, 20, 21));
  EXPECT_THAT(table.batch().positions, ElementsAre(4, 5, 6));
  EXPECT_THAT(table.batch().slot_mapping, ElementsAre(12, 13, 14));
  EXPECT_THAT(table.batch().context_lens, ElementsAre(7));
  EXPECT_THAT(table.batch().logits_rows, ElementsAre(0, 1, 2));
  ASSERT_EQ(table.logits_uses().size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(table.logits_uses()[i].position, 5 + i);
    EXPECT_EQ(table.RowOf(table.logits_uses()[i]).num_output_tokens, static_cast<int>(1 + i));
    EXPECT_EQ(table.RowOf(table.logits_uses()[i]).drafts.size(), i);
  }
}

TEST(SlotTable, GoesOnFromWhereDraftsWereRight) {
  for (const bool has_token_table : {false, true}) {
    for (int num_accepted = 0; num_accepted <= 2; ++num_accepted) {
      SlotTableOptions options = Small();
      options.is_last_stage = false;
      options.has_token_table = has_token_table;
      PlanWriter plan;
      SlotTable table = WithGuesses(options, plan);
      // What was chosen comes back, and is nobody's.
      const std::vector<SlotRef> sampled(table.sampled().begin(), table.sampled().end());
      ASSERT_EQ(sampled.size(), 3u);
      for (const SlotRef& ref : sampled) table.AppendSampled(ref, 99);

      std::vector<int32_t> tokens = {20, 21};
      tokens.resize(num_accepted);
      tokens.push_back(30);
      plan.Settle(0, tokens).Decode(0);
      ASSERT_TRUE(table.Apply(plan.Take()).ok());
      EXPECT_FALSE(!has_token_table && table.MissesTokens());
      EXPECT_EQ(table.NewestSource(), 0u);
      table.FillTokenIds();
      EXPECT_THAT(table.batch().token_ids, ElementsAre(30));
      EXPECT_THAT(table.batch().token_sources, IsEmpty());
      EXPECT_THAT(table.batch().positions, ElementsAre(5 + num_accepted));

      if (!has_token_table) table.AppendSampled(table.sampled()[0], 31);
      plan.Grant(0, {5}).Decode(0);
      ASSERT_TRUE(table.Apply(plan.Take()).ok());
      table.FillTokenIds();
      EXPECT_EQ(table.batch().token_sources.empty(), !has_token_table);
      EXPECT_THAT(table.batch().positions, ElementsAre(6 + num_accepted));
    }
  }
}

TEST(SlotTable, RefusesWhatDraftsCannotHaveBecome) {
  using Change = std::function<void(PlanWriter&)>;
  const std::pair<Change, const char*> cases[] = {
      {[](PlanWriter& plan) { plan.Decode(0); }, "before it was told"},
      {[](PlanWriter& plan) { plan.Settle(0, {}).Decode(0); }, "told 0 chosen tokens"},
      {[](PlanWriter& plan) {
         plan.Settle(0, {20, 21, 3, 4}).Decode(0);
       },
       "told 4 chosen tokens"},
      {[](PlanWriter& plan) {
         plan.Settle(0, {22, 3}).Decode(0);
       },
       "not its drafts"},
      {[](PlanWriter& plan) {
         plan.Settle(0, {20, 100}).Decode(0);
       },
       "token id 100"},
      {[](PlanWriter& plan) { plan.Settle(0, {20}).Settle(0, {20}).Decode(0); }, "had no drafts"},
  };
  for (const auto& [change, message] : cases) {
    PlanWriter plan;
    SlotTable table = WithGuesses(Small(), plan);
    change(plan);
    const absl::Status status = table.Apply(plan.Take());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(SlotTable, LaysOutChunksAndDecodes) {
  SlotTable table(Small());
  PlanWriter plan;
  plan.Open(0, {10, 11, 12, 13, 14}).Grant(0, {7, 3}).Chunk(0, 5, true);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  ASSERT_EQ(table.sampled().size(), 1u);
  table.AppendSampled(table.sampled()[0], 15);

  plan.Open(2, {20, 21, 22}).Grant(2, {0}).Chunk(2, 2, false).Decode(0);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_FALSE(table.MissesTokens());
  table.FillTokenIds();
  const StepBatch& batch = table.batch();
  EXPECT_THAT(batch.token_ids, ElementsAre(20, 21, 15));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 5));
  EXPECT_THAT(batch.slot_mapping, ElementsAre(0, 1, 3 * 4 + 1));
  EXPECT_THAT(batch.query_starts, ElementsAre(0, 2, 3));
  EXPECT_THAT(batch.context_lens, ElementsAre(2, 6));
  EXPECT_THAT(batch.table_rows, ElementsAre(2, 0));
  EXPECT_THAT(Fields(batch.new_blocks), ElementsAre(ElementsAre(2, 0, 0)));
  EXPECT_THAT(batch.logits_rows, ElementsAre(2));
  EXPECT_EQ(table.logits_uses()[0].position, 6u);
}

TEST(SlotTable, BlocksAreNewOnce) {
  SlotTable table(Small());
  PlanWriter plan;
  plan.Open(1, {10, 11, 12}).Grant(1, {7}).Chunk(1, 3, true);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_THAT(Fields(table.batch().new_blocks), ElementsAre(ElementsAre(1, 0, 7)));
  plan.Decode(1);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_THAT(table.batch().new_blocks, IsEmpty());
  plan.Decode(1).Grant(1, {3}).Open(0, {4}).Grant(0, {7}).Grant(0, {5});  // 0 has nothing to do
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_THAT(table.batch().table_rows, ElementsAre(1));
  EXPECT_THAT(Fields(table.batch().new_blocks),
              ElementsAre(ElementsAre(1, 1, 3), ElementsAre(0, 0, 7), ElementsAre(0, 1, 5)));
  // The next tenant begins anew.
  plan.Close(1).Open(1, {9}).Grant(1, {3}).Decode(1);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_THAT(Fields(table.batch().new_blocks), ElementsAre(ElementsAre(1, 0, 3)));
}

TEST(SlotTable, StartsBehindACachedPrefix) {
  SlotTable table(Small());
  PlanWriter plan;
  plan.Open(0, {1, 2, 3, 4, 5, 6}, PlanWriter::Greedy(), 6, 4).Grant(0, {5, 6}).Chunk(0, 2, true);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_ids, ElementsAre(5, 6));
  EXPECT_THAT(table.batch().slot_mapping, ElementsAre(24, 25));
  EXPECT_THAT(table.batch().context_lens, ElementsAre(6));
}

TEST(SlotTable, ADecodeMayComeBeforeItsToken) {
  SlotTable table(Small());
  PlanWriter plan;
  plan.Open(0, {1, 2}).Grant(0, {0}).Chunk(0, 2, true);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  const SlotRef sampled = table.sampled()[0];
  plan.Decode(0);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_TRUE(table.MissesTokens());
  table.AppendSampled(sampled, 33);
  EXPECT_FALSE(table.MissesTokens());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_ids, ElementsAre(33));
}

TEST(SlotTable, TokensThatReturnToATableAreNamedByTheirSlot) {
  SlotTableOptions options = Small();
  options.has_token_table = true;
  options.is_last_stage = false;
  SlotTable table(options);
  PlanWriter plan;
  plan.Open(0, {1, 2, 3}).Grant(0, {0, 1}).Open(2, {7}).Grant(2, {2}).Chunk(0, 2, false).Decode(2);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_ids, ElementsAre(1, 2, 7));
  EXPECT_THAT(table.batch().token_sources, IsEmpty());
  EXPECT_EQ(table.NewestSource(), 0u);
  for (const uint64_t step : {1, 2, 3}) {  // nobody ever appends
    plan.Decode(2);
    if (step == 1) plan.Chunk(0, 1, true);
    ASSERT_TRUE(table.Apply(plan.Take()).ok());
    table.FillTokenIds();
    EXPECT_EQ(table.batch().token_sources[0], 2);
    EXPECT_EQ(table.NewestSource(), step);
  }
  plan.Decode(0);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_sources, ElementsAre(0));
  EXPECT_EQ(table.NewestSource(), 2u) << "its last, however long ago";
  // The next tenant's are its own.
  plan.Close(2).Open(2, {50, 51}).Grant(2, {2}).Chunk(2, 2, true);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_ids, ElementsAre(50, 51));
  EXPECT_THAT(table.batch().token_sources, IsEmpty());
  EXPECT_EQ(table.NewestSource(), 0u);
}

TEST(SlotTable, ATokenThatADeviceHasIsNamedByItsPlaceInTheStepBefore) {
  SlotTable table(Small());
  PlanWriter plan;
  SamplingParams params = PlanWriter::Greedy();
  params.frequency_penalty = 1.0f;
  plan.Open(0, {1, 2}, params).Grant(0, {0}).Chunk(0, 1, false);
  plan.Open(1, {7}, params).Grant(1, {1}).Decode(1);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_sources, ElementsAre());
  EXPECT_EQ(table.RowOf(table.logits_uses()[0]).uncounted, -1);
  const SlotRef first = table.sampled()[0];
  plan.Decode(0).Decode(1);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_ids, ElementsAre(2, 0));
  EXPECT_THAT(table.batch().token_sources, ElementsAre(-1, 0));
  EXPECT_EQ(table.RowOf(table.logits_uses()[0]).uncounted, -1);
  EXPECT_EQ(table.RowOf(table.logits_uses()[1]).uncounted, 0);
  table.AppendSampled(first, 33);  // also once the step is laid out
  EXPECT_EQ(table.RowOf(table.logits_uses()[1]).uncounted, -1);
  plan.Decode(1).Decode(0);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_sources, ElementsAre(1, 0));
}

TEST(SlotTable, ATokenOfALeftSequenceIsDropped) {
  SlotTable table(Small());
  PlanWriter plan;
  plan.Open(0, {1}).Grant(0, {0}).Decode(0);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  const SlotRef old = table.sampled()[0];
  plan.Close(0).Open(0, {2}).Grant(0, {0}).Decode(0);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  const SlotRef current = table.sampled()[0];
  table.AppendSampled(old, 99);
  table.AppendSampled(current, 44);
  plan.Decode(0);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  table.FillTokenIds();
  EXPECT_THAT(table.batch().token_ids, ElementsAre(44));
}

TEST(SlotTable, PromptLogprobsJudgeEveryPromptTokenButTheFirst) {
  SlotTable table(Small());
  PlanWriter plan;
  SamplingParams params = PlanWriter::Greedy();
  params.num_prompt_logprobs = 0;
  plan.Open(0, {1, 2, 3, 4, 5, 6}, params, 4).Grant(0, {0, 1}).Chunk(0, 2, false);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_THAT(table.batch().logits_rows, ElementsAre(0, 1));
  EXPECT_EQ(table.logits_uses()[0].position, 1u);
  EXPECT_EQ(table.logits_uses()[0].prompt_target, 2);
  EXPECT_EQ(table.logits_uses()[1].prompt_target, 3);
  // The fourth token is the prompt's last: what follows it is output.
  plan.Chunk(0, 4, true);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_THAT(table.batch().logits_rows, ElementsAre(0, 3));
  EXPECT_EQ(table.logits_uses()[0].prompt_target, 4);
  EXPECT_EQ(table.logits_uses()[1].prompt_target, -1);
  EXPECT_EQ(table.RowOf(table.logits_uses()[1]).num_output_tokens, 2);
  EXPECT_EQ(table.RowOf(table.logits_uses()[1]).position, 6u);
}

TEST(SlotTable, OnlyTheLastStageWantsLogits) {
  SlotTableOptions options = Small();
  options.is_last_stage = false;
  SlotTable table(options);
  PlanWriter plan;
  plan.Open(0, {1, 2}).Grant(0, {0}).Chunk(0, 2, true);
  ASSERT_TRUE(table.Apply(plan.Take()).ok());
  EXPECT_THAT(table.batch().logits_rows, IsEmpty());
  EXPECT_EQ(table.sampled().size(), 1u);
}

// One good step (slot 0 holds five tokens in blocks 0 and 1, all computed), then a bad one.
absl::Status ApplyBad(const std::function<void(engine::StepPlan&)>& spoil) {
  SlotTable table(Small());
  PlanWriter plan;
  plan.Open(0, {1, 2, 3, 4, 5}).Grant(0, {0, 1}).Chunk(0, 5, true);
  EXPECT_TRUE(table.Apply(plan.Take()).ok());
  table.AppendSampled(table.sampled()[0], 6);
  engine::StepPlan bad = plan.Decode(0).Take();
  spoil(bad);
  return table.Apply(bad);
}

engine::SlotOpen OpenOf(uint32_t slot, std::vector<int32_t> tokens) {
  engine::SlotOpen open;
  open.slot = slot;
  open.num_prompt_tokens = 1;
  open.tokens = std::move(tokens);
  return open;
}

TEST(SlotTable, TakesTheUnspoiltPlan) {
  EXPECT_TRUE(ApplyBad([](engine::StepPlan&) {}).ok());
}

TEST(SlotTable, RefusesMalformedPlans) {
  using Plan = engine::StepPlan;
  constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();
  const std::vector<std::pair<std::function<void(Plan&)>, std::string>> cases = {
      {[](Plan& p) { p.step_id = 3; }, "step 2 is next"},
      {[](Plan& p) { p.step_id = 1; }, "step 2 is next"},
      {[](Plan& p) { p.work.clear(); }, "no work"},
      {[](Plan& p) { p.closed = {1}; }, "not open"},
      {[](Plan& p) {
         p.closed = {0, 0};
       },
       "not open"},
      {[](Plan& p) { p.closed = {kHuge}; }, "3 slots"},
      {[](Plan& p) { p.closed = {0}; }, "given work, but it is not open"},
      {[](Plan& p) { p.opened = {OpenOf(0, {1})}; }, "open already"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1}), OpenOf(1, {1})};
       },
       "open already"},
      {[](Plan& p) { p.opened = {OpenOf(3, {1})}; }, "3 slots"},
      {[](Plan& p) { p.opened = {OpenOf(1, {})}; }, "0 tokens"},
      {[](Plan& p) { p.opened = {OpenOf(1, std::vector<int32_t>(17))}; }, "17 tokens"},
      {[](Plan& p) { p.opened = {OpenOf(1, {100})}; }, "token id 100"},
      {[](Plan& p) { p.opened = {OpenOf(1, {-1})}; }, "token id -1"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1})};
         p.opened[0].num_prompt_tokens = 0;
       },
       "0 prompt tokens"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1})};
         p.opened[0].num_prompt_tokens = kHuge;
       },
       "prompt tokens of 1"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1})};
         p.opened[0].num_computed_tokens = 1;
       },
       "1 computed tokens"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1})};
         p.opened[0].sampling.top_p = std::numeric_limits<float>::quiet_NaN();
       },
       "top_p"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1})};
         p.opened[0].sampling.constraint = {OutputConstraint::Kind::kRegex, "a"};
       },
       "slot 1: constrained: no vocabulary"},
      {[](Plan& p) { p.grants = {{.slot = 1, .blocks = {2}}}; }, "not open"},
      {[](Plan& p) { p.grants = {{.slot = kHuge, .blocks = {2}}}; }, "not open"},
      {[](Plan& p) { p.grants = {{.slot = 0, .blocks = {10}}}; }, "block 10"},
      {[](Plan& p) { p.grants = {{.slot = 0, .blocks = {-1}}}; }, "block -1"},
      {[](Plan& p) {
         p.grants = {{.slot = 0, .blocks = {2, 2}}};
       },
       "block 2 twice"},
      {[](Plan& p) { p.grants = {{.slot = 0, .blocks = {1}}}; }, "block 1 twice"},
      {[](Plan& p) {
         p.grants = {{.slot = 0, .blocks = {2, 3, 4}}};
       },
       "longest sequence has 4"},
      {[](Plan& p) {
         p.grants = {{.slot = 0, .blocks = {2, 3}}, {.slot = 0, .blocks = {4}}};
       },
       "granted 1 blocks beside its 4"},
      {[](Plan& p) { p.settled = {{.slot = 1, .tokens = {2}}}; }, "told what it has chosen, but"},
      {[](Plan& p) { p.settled = {{.slot = kHuge, .tokens = {2}}}; }, "not open"},
      {[](Plan& p) { p.settled = {{.slot = 0, .tokens = {2}}}; }, "had no drafts"},
      {[](Plan& p) { p.work[0].drafts = {100}; }, "token id 100"},
      {[](Plan& p) { p.work[0].drafts = {-1}; }, "token id -1"},
      {[](Plan& p) {
         p.work[0].drafts = {1, 2, 3};
       },
       "blocks hold 8"},
      {[](Plan& p) {
         p.grants = {{.slot = 0, .blocks = {2, 3}}};
         p.work[0].drafts = {1, 2, 3};
       },
       "with 4 tokens to choose beside 0 the step exceeds 3"},
      {[](Plan& p) {
         p.work[0].sample = false;
         p.work[0].drafts = {1};
       },
       "1 drafts after 1 tokens that are no decode"},
      {[](Plan& p) { p.work.push_back(p.work[0]); }, "work twice"},
      {[](Plan& p) { p.work[0].slot = 2; }, "not open"},
      {[](Plan& p) { p.work[0].slot = kHuge; }, "not open"},
      {[](Plan& p) { p.work[0].num_tokens = 0; }, "only 6 are known"},
      {[](Plan& p) { p.work[0].num_tokens = 2; }, "only 6 are known"},
      {[](Plan& p) { p.work[0].num_tokens = kHuge; }, "only 6 are known"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1, 2, 3})};
         p.grants = {{.slot = 1, .blocks = {4}}};
         p.work.push_back({.slot = 1, .num_tokens = 2, .sample = true});
       },
       "to sample after 2 tokens"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, {1, 2, 3, 4, 5})};
         p.grants = {{.slot = 1, .blocks = {4}}};
         p.work.push_back({.slot = 1, .num_tokens = 5, .sample = true});
       },
       "1 blocks hold 4"},
      {[](Plan& p) {
         p.opened = {OpenOf(1, std::vector<int32_t>(12))};
         p.grants = {{.slot = 1, .blocks = {4, 5, 6}}};
         p.work.push_back({.slot = 1, .num_tokens = 12, .sample = true});
       },
       "exceeds 12 tokens"},
  };
  for (const auto& [spoil, message] : cases) {
    const absl::Status status = ApplyBad(spoil);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace lockstep
