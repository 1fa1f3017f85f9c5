#include "runtime/controller/request_validation.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/grammar/tool_calls.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

RequestLimits Limits() {
  RequestLimits limits;
  limits.vocab_size = 100;
  limits.max_model_len = 50;
  limits.max_num_outputs = 8;
  return limits;
}

v1::GenerateRequest Valid() {
  v1::GenerateRequest request;
  request.set_text("hello");
  return request;
}

struct Wrong {
  std::string name;
  std::function<void(v1::GenerateRequest&)> spoil;
  std::string says;
};

class WrongRequestTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongRequestTest, IsRefusedInOneLineThatNamesTheField) {
  v1::GenerateRequest request = Valid();
  GetParam().spoil(request);
  const absl::Status status = CheckRequest(request, SamplingParams{}, Limits()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
  EXPECT_EQ(status.message().find('\n'), absl::string_view::npos);
}

#define SPOIL [](v1::GenerateRequest & r)
INSTANTIATE_TEST_SUITE_P(
    Fields, WrongRequestTest,
    ::testing::Values(
        Wrong{"NoPrompt", SPOIL{r.clear_prompt();
}  // namespace
, "prompt is missing"
}  // namespace lockstep
, Wrong{"LongId", SPOIL{r.set_request_id(std::string(129, 'x'));
}
, "request_id has 129"
}
, Wrong{"IdNotPrintable", SPOIL{r.set_request_id("a\n");
}
, "request_id: byte 1"
}
, Wrong{"LongSalt", SPOIL{r.set_cache_salt(std::string(129, 'x'));
}
, "cache_salt has 129"
}
, Wrong{"PriorityHigh", SPOIL{r.set_priority(1001);
}
, "priority 1001"
}
, Wrong{"PriorityLow", SPOIL{r.set_priority(-1001);
}
, "priority -1001"
}
, Wrong{"TemperatureNan", SPOIL{r.mutable_sampling()->set_temperature(kNan);
}
, "temperature"
}
, Wrong{"TemperatureNegative", SPOIL{r.mutable_sampling()->set_temperature(-1);
}
, "temperature"
}
, Wrong{"TemperatureTiny", SPOIL{r.mutable_sampling()->set_temperature(0.001f);
}
, "temperature"
}
, Wrong{"TemperatureInfinite", SPOIL{r.mutable_sampling()->set_temperature(kInfinity);
}
, "temperature"
}
, Wrong{"TopK", SPOIL{r.mutable_sampling()->set_top_k(-1);
}
, "top_k"
}
, Wrong{"TopPZero", SPOIL{r.mutable_sampling()->set_top_p(0);
}
, "top_p"
}
, Wrong{"TopPNan", SPOIL{r.mutable_sampling()->set_top_p(kNan);
}
, "top_p"
}
, Wrong{"TopPHigh", SPOIL{r.mutable_sampling()->set_top_p(1.5f);
}
, "top_p"
}
, Wrong{"MinP", SPOIL{r.mutable_sampling()->set_min_p(1.5f);
}
, "min_p"
}
, Wrong{"RepetitionZero", SPOIL{r.mutable_sampling()->set_repetition_penalty(0);
}
, "repetition_penalty"
}
, Wrong{"PresenceHigh", SPOIL{r.mutable_sampling()->set_presence_penalty(2.5f);
}
, "presence_penalty"
}
, Wrong{"FrequencyNan", SPOIL{r.mutable_sampling()->set_frequency_penalty(kNan);
}
, "frequency_penalty"
}
, Wrong{"BiasToken", SPOIL{(*r.mutable_sampling()->mutable_logit_bias())[100] = 1;
}
, "logit_bias"
}
, Wrong{"BiasNan", SPOIL{(*r.mutable_sampling()->mutable_logit_bias())[5] = kNan;
}
, "logit_bias"
}
, Wrong{"BiasHigh", SPOIL{(*r.mutable_sampling()->mutable_logit_bias())[5] = 101;
}
, "logit_bias"
}
, Wrong{"OutputsZero", SPOIL{r.mutable_sampling()->set_num_outputs(0);
}
, "num_outputs 0"
}
, Wrong{"OutputsMany", SPOIL{r.mutable_sampling()->set_num_outputs(9);
}
, "num_outputs 9"
}
, Wrong{"MaxTokensZero", SPOIL{r.mutable_stop()->set_max_tokens(0);
}
, "max_tokens 0"
}
, Wrong{"MinTokensNegative", SPOIL{r.mutable_stop()->set_min_tokens(-1);
}
, "min_tokens -1"
}
, Wrong{"MinAboveMax", SPOIL{r.mutable_stop()->set_max_tokens(3);
r.mutable_stop()->set_min_tokens(4);
}
, "min_tokens 4"
}
, Wrong{"StopTokenUnknown", SPOIL{r.mutable_stop()->add_stop_token_ids(100);
}
, "stop_token_ids"
}
, Wrong{"StopTokensMany",
        SPOIL{for (int i = 0; i < 65; ++i) r.mutable_stop()->add_stop_token_ids(1);
}
, "stop_token_ids"
}
, Wrong{"StopStringEmpty", SPOIL{r.mutable_stop()->add_stop_strings("");
}
, "stop_strings[0] has 0 bytes"
}
, Wrong{"StopStringLong", SPOIL{r.mutable_stop()->add_stop_strings(std::string(257, 'x'));
}
, "stop_strings[0] has 257 bytes"
}
, Wrong{"StopStringsMany",
        SPOIL{for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop_strings("x");
}
, "stop_strings has 17"
}
, Wrong{"LogprobsHigh", SPOIL{r.mutable_output()->set_logprobs(21);
}
, "logprobs 21"
}
, Wrong{"LogprobsNegative", SPOIL{r.mutable_output()->set_logprobs(-1);
}
, "logprobs -1"
}
, Wrong{"PromptLogprobs", SPOIL{r.mutable_output()->set_prompt_logprobs(21);
}
, "prompt_logprobs 21"
}
, Wrong{"ConstraintOfNoKind", SPOIL{r.mutable_constraint();
}
, "constraint is empty"
}
, Wrong{"ConstraintLong", SPOIL{r.mutable_constraint()->set_regex(std::string(65537, 'a'));
}
, "constraint's bytes is 65537"
}
, Wrong{"ChoicesLong",
        SPOIL{for (int i = 0; i < 2; ++i){
            r.mutable_constraint()->mutable_choices()->add_texts(std::string(40000, 'a'));
}
}
, "constraint.choices have 80000 bytes"
}
, Wrong{"ChoicesMany",
        SPOIL{for (int i = 0; i < 30000; ++i) r.mutable_constraint()->mutable_choices()->add_texts(
            "");
}
, "constraint.choices have 30000 texts, at most 21845"
}
, Wrong{"ToolCallsMany", SPOIL{for (int i = 0; i < 129; ++i) r.mutable_constraint()
                                   ->mutable_tool_calls()
                                   ->add_functions();
}
, "constraint.tool_calls: are of 129 functions, must be 1 to 128"
}
, Wrong{"ToolCallsLong", SPOIL{v1::ToolCalls& calls = *r.mutable_constraint()->mutable_tool_calls();
calls.add_functions()->set_parameters(std::string(65537, 'b'));
}
, "constraint.tool_calls have 65537 bytes, at most 65536"
}
, Wrong{"ToolCallsForm", SPOIL{r.mutable_constraint()->mutable_tool_calls()->set_form(
                             static_cast<v1::ToolCalls::Form>(3));
}
, "constraint.tool_calls.form is 3, must be 0 to 2"
}
, Wrong{"ConstraintThought", SPOIL{r.mutable_constraint()->set_regex("a");
r.mutable_constraint()->set_thought(static_cast<v1::Thought>(3));
}
, "constraint.thought is 3, must be 0 to 2"
}
, Wrong{"ConstraintAndIgnoreEos", SPOIL{r.mutable_constraint()->set_regex("a");
r.mutable_stop()->set_ignore_eos(true);
}
, "ignore_eos and a constraint"
}
, Wrong{"ConstraintAndMinTokens", SPOIL{r.mutable_constraint()->set_regex("a");
r.mutable_stop()->set_min_tokens(2);
}
, "min_tokens is 2, must be 0 where the output is constrained"
}),
    [](const ::testing::TestParamInfo<Wrong>& info) {
  return info.param.name; });
#undef SPOIL

TEST(RequestValidationTest, UnsetFieldsTakeTheCheckpointsDefaults) {
  GenerationDefaults defaults;
  defaults.temperature = 0.5f;
  defaults.top_k = 7;
  defaults.min_p = 0.25f;
  const absl::StatusOr<SamplingParams> params = DefaultSampling(defaults, 100);
  ASSERT_TRUE(params.ok()) << params.status();
  v1::GenerateRequest request = Valid();
  request.mutable_sampling()->set_top_k(0);  // zero is not "unset"
  const absl::StatusOr<CheckedRequest> checked = CheckRequest(request, *params, Limits());
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->engine.sampling.temperature, 0.5f);
  EXPECT_EQ(checked->engine.sampling.top_k, 0);
  EXPECT_EQ(checked->engine.sampling.min_p, 0.25f);
}

OutputConstraint ConstraintOf(const std::function<void(v1::OutputConstraint&)>& change) {
  v1::GenerateRequest request = Valid();
  change(*request.mutable_constraint());
  return CheckRequest(request, SamplingParams{}, Limits()).value().engine.sampling.constraint;
}

TEST(RequestValidationTest, ConstraintsAreHandedOn) {
  using Kind = OutputConstraint::Kind;
  EXPECT_EQ(ConstraintOf([](auto& c) { c.set_regex("a|b"); }),
            (OutputConstraint{Kind::kRegex, "a|b"}));
  EXPECT_EQ(ConstraintOf([](auto& c) { c.set_json_schema("{}"); }),
            (OutputConstraint{Kind::kJsonSchema, "{}"}));
  EXPECT_EQ(ConstraintOf([](auto& c) {
              c.mutable_choices()->add_texts("\"yes\"");
              c.mutable_choices()->add_texts("\n");
            }),
            (OutputConstraint{Kind::kChoices, R"(["\"yes\"","\n"])"}));
  EXPECT_EQ(ConstraintOf([](auto& c) {
              c.set_regex("a|b");
              c.set_thought(v1::THOUGHT_BEGUN);
            }),
            (OutputConstraint{Kind::kRegex, "a|b", OutputConstraint::Thought::kBegun}));
  EXPECT_EQ(
      ConstraintOf([](auto& c) {
        v1::ToolCalls& calls = *c.mutable_tool_calls();
        calls.set_form(v1::ToolCalls::FORM_MARKED);
        calls.set_required(true);
        calls.add_functions()->set_name("f");
        calls.mutable_functions(0)->set_parameters("{}");
      }),
      (OutputConstraint{
          Kind::kToolCalls,
          grammar::TextOf({grammar::ToolCalls::Form::kMarked, /*required=*/true, {{"f", "{}"}}})}));
  EXPECT_EQ(ConstraintOf([](auto& c) {
              c.set_regex("a");
              c.set_thought(v1::THOUGHT_ALLOWED);
            }).thought,
            OutputConstraint::Thought::kAllowed);
  EXPECT_EQ(CheckRequest(Valid(), SamplingParams{}, Limits())->engine.sampling.constraint,
            OutputConstraint{});
}

TEST(RequestValidationTest, DoSampleFalseMeansGreedy) {
  GenerationDefaults defaults;
  defaults.do_sample = false;
  defaults.temperature = 0.5f;
  EXPECT_EQ(DefaultSampling(defaults, 100)->temperature, 0.0f);
}

TEST(RequestValidationTest, BadDefaultsNameTheirFile) {
  GenerationDefaults defaults;
  defaults.top_p = 3.0f;
  const absl::Status status = DefaultSampling(defaults, 100).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("generation_config.json"));
}

TEST(RequestValidationTest, UnsetSeedsAndIdsAreDrawn) {
  const CheckedRequest one = *CheckRequest(Valid(), SamplingParams{}, Limits());
  const CheckedRequest two = *CheckRequest(Valid(), SamplingParams{}, Limits());
  EXPECT_NE(one.stream.seed, two.stream.seed);
  EXPECT_NE(one.stream.request_id, two.stream.request_id);
  EXPECT_EQ(one.stream.seed, one.engine.sampling.seed);
}

class PromptTest : public ::testing::Test {
 protected:
  absl::Status Set(std::vector<int32_t> prompt) {
    return SetPrompt(std::move(prompt), Limits(), checked_);
  }
  CheckedRequest checked_ = *CheckRequest(Valid(), SamplingParams{}, Limits());
};

TEST_F(PromptTest, MaxTokensDefaultsToWhatIsLeft) {
  ASSERT_TRUE(Set(std::vector<int32_t>(20, 5)).ok());
  EXPECT_EQ(checked_.engine.sampling.max_tokens, 30);
}

TEST_F(PromptTest, MaxTokensIsCutToWhatIsLeft) {
  checked_.max_tokens = 1000;
  ASSERT_TRUE(Set(std::vector<int32_t>(49, 5)).ok());
  EXPECT_EQ(checked_.engine.sampling.max_tokens, 1);
}

TEST_F(PromptTest, RefusesWhatCannotRun) {
  EXPECT_THAT(std::string(Set({}).message()), HasSubstr("prompt is empty"));
  EXPECT_THAT(std::string(Set(std::vector<int32_t>(50, 5)).message()),
              HasSubstr("prompt has 50 tokens, but the maximum context length is 50"));
  EXPECT_THAT(std::string(Set({5, 100}).message()), HasSubstr("token_ids[1] 100"));
  EXPECT_THAT(std::string(Set({-1}).message()), HasSubstr("token_ids[0] -1"));
  checked_.engine.sampling.min_tokens = 2;
  EXPECT_THAT(std::string(Set(std::vector<int32_t>(49, 5)).message()), HasSubstr("min_tokens 2"));
}

}  // namespace
}  // namespace lockstep
