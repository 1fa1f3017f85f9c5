#include "model/sampling/sampling_params.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 100;
constexpr float kParamsNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kParamsInf = std::numeric_limits<float>::infinity();

absl::Status With(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  return ValidateSamplingParams(params, kVocab);
}

TEST(ValidateSamplingParams, TakesDefaultsAndLimits) {
  EXPECT_TRUE(ValidateSamplingParams({}, kVocab).ok());
  EXPECT_TRUE(With([](SamplingParams& p) { p.temperature = 0.0f; }).ok());
  EXPECT_TRUE(With([](SamplingParams& p) { p.temperature = 0.01f; }).ok());
  EXPECT_TRUE(With([](SamplingParams& p) { p.temperature = 100.0f; }).ok());
  EXPECT_TRUE(With([](SamplingParams& p) { p.min_p = 1.0f; }).ok());
  EXPECT_TRUE(With([](SamplingParams& p) { p.logit_bias = {{0, -100.0f}, {99, 100.0f}}; }).ok());
  EXPECT_TRUE(With([](SamplingParams& p) { p.num_logprobs = 20; }).ok());
  EXPECT_TRUE(With([](SamplingParams& p) {
                p.constraint = {OutputConstraint::Kind::kChoices, std::string(65536, '[')};
              }).ok());
}

TEST(ValidateSamplingParams, NamesFieldAndValue) {
  const absl::Status status = With([](SamplingParams& p) { p.top_p = 1.5f; });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("top_p is 1.5"));
}

TEST(ValidateSamplingParams, RefusesValuesOutsideTheLimits) {
  const std::vector<std::function<void(SamplingParams&)>> changes = {
      [](SamplingParams& p) { p.temperature = -1.0f; },
      [](SamplingParams& p) { p.temperature = 0.001f; },
      [](SamplingParams& p) { p.temperature = kParamsInf; },
      [](SamplingParams& p) { p.temperature = kParamsNan; },
      [](SamplingParams& p) { p.top_k = -1; },
      [](SamplingParams& p) { p.top_p = 0.0f; },
      [](SamplingParams& p) { p.top_p = kParamsNan; },
      [](SamplingParams& p) { p.min_p = 1.1f; },
      [](SamplingParams& p) { p.min_p = kParamsNan; },
      [](SamplingParams& p) { p.repetition_penalty = 0.0f; },
      [](SamplingParams& p) { p.repetition_penalty = kParamsNan; },
      [](SamplingParams& p) { p.presence_penalty = 2.5f; },
      [](SamplingParams& p) { p.frequency_penalty = -kParamsInf; },
      [](SamplingParams& p) {
        p.logit_bias = {{100, 1.0f}};
      },
      [](SamplingParams& p) {
        p.logit_bias = {{-1, 1.0f}};
      },
      [](SamplingParams& p) {
        p.logit_bias = {{5, kParamsNan}};
      },
      [](SamplingParams& p) {
        p.logit_bias = {{5, 1.0f}, {5, 2.0f}};
      },
      [](SamplingParams& p) { p.logit_bias.resize(1025); },
      [](SamplingParams& p) { p.max_tokens = 0; },
      [](SamplingParams& p) { p.min_tokens = 17; },
      [](SamplingParams& p) { p.stop_token_ids = {100}; },
      [](SamplingParams& p) { p.stop_token_ids.assign(65, 1); },
      [](SamplingParams& p) { p.num_logprobs = 21; },
      [](SamplingParams& p) { p.num_prompt_logprobs = -2; },
      [](SamplingParams& p) {
        p.constraint = {OutputConstraint::Kind::kRegex, std::string(65537, 'a')};
      },
      [](SamplingParams& p) {
        p.constraint = {OutputConstraint::Kind::kRegex, "a"};
        p.ignore_eos = true;
      },
      [](SamplingParams& p) {
        p.constraint = {OutputConstraint::Kind::kRegex, "a"};
        p.min_tokens = 1;
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_EQ(With(changes[i]).code(), absl::StatusCode::kInvalidArgument) << "change " << i;
  }
}

}  // namespace
}  // namespace lockstep
