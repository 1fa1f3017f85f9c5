#include "runtime/worker/plan_codec.h"

#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SamplingParams EverySampling() {
  SamplingParams params;
  params.temperature = 0.5f;
  params.top_k = 3;
  params.top_p = 0.25f;
  params.min_p = 0.125f;
  params.repetition_penalty = 1.5f;
  params.presence_penalty = -0.5f;
  params.frequency_penalty = 0.75f;
  params.logit_bias = {{4, 1.0f}, {9, -100.0f}};
  params.seed = 0xFEDCBA9876543210u;
  params.max_tokens = 77;
  params.min_tokens = 2;
  params.stop_token_ids = {8, 1};
  params.ignore_eos = true;
  params.constraint = {OutputConstraint::Kind::kToolCalls, "[a-z]+ é",
                       OutputConstraint::Thought::kBegun};
  params.num_logprobs = 0;
  params.num_prompt_logprobs = 5;
  return params;
}

engine::StepPlan EveryPlan() {
  engine::StepPlan plan;
  plan.step_id = uint64_t{1} << 40;
  plan.closed = {4, 2};
  engine::SlotOpen open;
  open.slot = 7;
  open.sequence_index = 3;
  open.sampling = EverySampling();
  open.tokens = {1, 128255, 0};
  open.num_prompt_tokens = 2;
  open.num_computed_tokens = 1;
  engine::SlotOpen plain;
  plain.slot = 8;
  plain.tokens = {5};
  plain.num_prompt_tokens = 1;
  plan.opened = {open, plain};
  plan.grants = {{.slot = 7, .blocks = {100000, 0}}, {.slot = 8, .blocks = {}}};
  plan.offloaded = {{.block = 7, .host_block = 1 << 30}, {.block = 0, .host_block = 2}};
  plan.restored = {{.block = 100000, .host_block = 0}};
  plan.prefetched = {{.block = 3, .host_block = 4}, {.block = 1, .host_block = 1 << 30}};
  plan.settled = {{.slot = 3, .tokens = {5, 128255}}};
  plan.work = {{.slot = 7, .num_tokens = 2, .sample = false},
               {.slot = 8, .num_tokens = 5, .sample = true},
               {.slot = 3, .num_tokens = 1, .sample = true, .drafts = {128255, 0}},
               {.slot = 1, .num_tokens = 1, .sample = true},
               {.slot = 0, .num_tokens = 1, .sample = true}};
  return plan;
}

engine::StepPlan RoundTrip(const engine::StepPlan& plan) {
  v1::StepPlan message;
  EncodePlan(plan, &message);
  v1::StepPlan received;
  EXPECT_TRUE(received.ParseFromString(message.SerializeAsString()));
  const absl::StatusOr<engine::StepPlan> decoded = DecodePlan(received);
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  return decoded.value_or(engine::StepPlan{});
}

TEST(PlanCodec, PlanSurvivesTheWire) { EXPECT_EQ(RoundTrip(EveryPlan()), EveryPlan()); }

TEST(PlanCodec, KeepsTheOrderOfWorkWhateverItIs) {
  engine::StepPlan plan = EveryPlan();
  std::swap(plan.work[0], plan.work[4]);
  EXPECT_EQ(RoundTrip(plan), plan);
}

TEST(PlanCodec, DecodesCostOneSlotNumber) {
  engine::StepPlan plan;
  plan.step_id = 1;
  for (uint32_t slot = 0; slot < 100; ++slot) plan.work.push_back({.slot = slot});
  v1::StepPlan message;
  EncodePlan(plan, &message);
  EXPECT_EQ(message.chunks_size(), 0);
  EXPECT_LE(message.ByteSizeLong(), 110u);
}

TEST(PlanCodec, RefusesWhatAPlanCannotSay) {
  v1::StepPlan uneven;
  uneven.add_opened()->mutable_sampling()->add_logit_bias_ids(3);
  EXPECT_THAT(std::string(DecodePlan(uneven).status().message()), HasSubstr("logit_bias_values"));
  v1::StepPlan lonely;
  lonely.mutable_restored()->add_blocks(3);
  EXPECT_THAT(std::string(DecodePlan(lonely).status().message()), HasSubstr("host_blocks"));
  v1::StepPlan empty_chunk;
  empty_chunk.add_chunks()->set_slot(5);
  EXPECT_THAT(std::string(DecodePlan(empty_chunk).status().message()), HasSubstr("slot 5"));
}

TEST(PlanCodec, SamplingSlotsFollowTheWork) {
  EXPECT_THAT(SamplingSlots(EveryPlan()), ElementsAre(8, 3, 3, 3, 1, 0));
}

engine::StepResult EveryResult() {
  engine::StepResult result;
  result.step_id = 12;
  result.sampled = {
      {.slot = 8, .token = 5, .logprobs = {}},
      {.slot = 1,
       .token = 0,
       .logprobs = LogprobInfo{.logprob = -1.5f, .top = {{7, 0.0f}, {2, -2.0f}}}},
      {.slot = 0,
       .token = 99,
       .logprobs = LogprobInfo{.logprob = -std::numeric_limits<float>::infinity(), .top = {}}}};
  result.prompt_logprobs = {
      {.slot = 8, .first_position = 1, .logprobs = {{.logprob = -0.5f, .top = {{1, -0.25f}}}}}};
  return result;
}

constexpr uint32_t kSlots[] = {8, 1, 0};

TEST(PlanCodec, ResultSurvivesTheWire) {
  v1::StepResult message;
  EncodeResult(EveryResult(), &message);
  const absl::StatusOr<engine::StepResult> decoded = DecodeResult(message, kSlots, 100);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, EveryResult());
  message.set_tokens(0, kNoToken);
  const absl::StatusOr<engine::StepResult> none = DecodeResult(message, kSlots, 100);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->sampled[0].token, kNoToken);
}

TEST(PlanCodec, RefusesMalformedResults) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::function<void(v1::StepResult&)>> spoils = {
      [](v1::StepResult& r) { r.add_tokens(1); },
      [](v1::StepResult& r) { r.mutable_tokens()->RemoveLast(); },
      [](v1::StepResult& r) { r.set_tokens(0, 100); },
      [](v1::StepResult& r) { r.set_tokens(0, kNoToken - 1); },
      [](v1::StepResult& r) { r.mutable_logprobs(0)->set_index(3); },
      [](v1::StepResult& r) { r.mutable_logprobs(0)->set_index(2); },
      [](v1::StepResult& r) { r.mutable_logprobs(0)->mutable_entry()->set_logprob(kNan); },
      [](v1::StepResult& r) { r.mutable_logprobs(0)->mutable_entry()->set_logprob(0.5f); },
      [](v1::StepResult& r) { r.mutable_logprobs(0)->mutable_entry()->add_top_tokens(1); },
      [](v1::StepResult& r) { r.mutable_logprobs(0)->mutable_entry()->set_top_tokens(0, 100); },
      [](v1::StepResult& r) { r.mutable_logprobs(0)->mutable_entry()->set_top_logprobs(0, kNan); },
      [](v1::StepResult& r) {
        for (int i = 0; i < 20; ++i) {
          r.mutable_logprobs(0)->mutable_entry()->add_top_tokens(1);
          r.mutable_logprobs(0)->mutable_entry()->add_top_logprobs(-1.0f);
        }
      },
      [](v1::StepResult& r) { r.mutable_prompt_logprobs(0)->set_first_position(0); },
      [](v1::StepResult& r) {
        r.mutable_prompt_logprobs(0)->mutable_entries(0)->set_logprob(kNan);
      },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    v1::StepResult message;
    EncodeResult(EveryResult(), &message);
    spoils[i](message);
    EXPECT_EQ(DecodeResult(message, kSlots, 100).status().code(),
              absl::StatusCode::kInvalidArgument)
        << "case " << i;
  }
}

}  // namespace
}  // namespace lockstep
