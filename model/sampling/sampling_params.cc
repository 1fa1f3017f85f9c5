#include "model/sampling/sampling_params.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

template <typename T>
absl::Status OutOfRange(absl::string_view field, T value, absl::string_view limits) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", must be ", limits));
}

// Written so that NaN is outside.
bool Within(float value, float low, float high) { return value >= low && value <= high; }

absl::Status CheckDistribution(const SamplingParams& params) {
  if (params.temperature != 0.0f &&
      !Within(params.temperature, SamplingParams::kMinTemperature, 100.0f)) {
    return OutOfRange("temperature", params.temperature, "0 (greedy) or 0.01 to 100");
  }
  if (params.top_k < 0) return OutOfRange("top_k", params.top_k, "at least 0 (0 = off)");
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return OutOfRange("top_p", params.top_p, "above 0 and at most 1");
  }
  if (!Within(params.min_p, 0.0f, 1.0f)) return OutOfRange("min_p", params.min_p, "0 to 1");
  return absl::OkStatus();
}

absl::Status CheckPenalties(const SamplingParams& params) {
  if (!(params.repetition_penalty > 0.0f && params.repetition_penalty <= 10.0f)) {
    return OutOfRange("repetition_penalty", params.repetition_penalty, "above 0 and at most 10");
  }
  if (!Within(params.presence_penalty, -2.0f, 2.0f)) {
    return OutOfRange("presence_penalty", params.presence_penalty, "-2 to 2");
  }
  if (!Within(params.frequency_penalty, -2.0f, 2.0f)) {
    return OutOfRange("frequency_penalty", params.frequency_penalty, "-2 to 2");
  }
  return absl::OkStatus();
}

absl::Status CheckToken(absl::string_view field, int32_t token, int64_t vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " holds token id ", token, ", the vocabulary is 0 to ", vocab_size - 1));
}

absl::Status CheckLogitBias(const SamplingParams& params, int64_t vocab_size) {
  if (params.logit_bias.size() > SamplingParams::kMaxLogitBias) {
    return OutOfRange("the number of logit_bias entries", params.logit_bias.size(),
                      absl::StrCat("at most ", SamplingParams::kMaxLogitBias));
  }
  std::vector<int32_t> tokens;
  tokens.reserve(params.logit_bias.size());
  for (const auto& [token, bias] : params.logit_bias) {
    RETURN_IF_ERROR(CheckToken("logit_bias", token, vocab_size));
    if (!Within(bias, -100.0f, 100.0f)) {
      return OutOfRange(absl::StrCat("logit_bias of token ", token), bias, "-100 to 100");
    }
    tokens.push_back(token);
  }
  std::sort(tokens.begin(), tokens.end());
  const auto repeated = std::adjacent_find(tokens.begin(), tokens.end());
  if (repeated == tokens.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("logit_bias names token ", *repeated, " twice"));
}

absl::Status CheckStop(const SamplingParams& params, int64_t vocab_size) {
  if (params.max_tokens < 1) return OutOfRange("max_tokens", params.max_tokens, "at least 1");
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return OutOfRange("min_tokens", params.min_tokens,
                      absl::StrCat("0 to max_tokens (", params.max_tokens, ")"));
  }
  if (params.stop_token_ids.size() > SamplingParams::kMaxStopTokenIds) {
    return OutOfRange("the number of stop_token_ids", params.stop_token_ids.size(),
                      absl::StrCat("at most ", SamplingParams::kMaxStopTokenIds));
  }
  for (const int32_t token : params.stop_token_ids) {
    RETURN_IF_ERROR(CheckToken("stop_token_ids", token, vocab_size));
  }
  return absl::OkStatus();
}

absl::Status CheckLogprobs(absl::string_view field, int32_t count) {
  if (count >= -1 && count <= SamplingParams::kMaxLogprobs) return absl::OkStatus();
  return OutOfRange(field, count, absl::StrCat("0 to ", SamplingParams::kMaxLogprobs));
}

// Not the text itself: whoever it was that compiled it knows.
absl::Status CheckConstraint(const SamplingParams& params) {
  if (params.constraint.kind == OutputConstraint::Kind::kNone) return absl::OkStatus();
  if (params.constraint.text.size() > OutputConstraint::kMaxTextBytes) {
    return OutOfRange("the number of the constraint's bytes", params.constraint.text.size(),
                      absl::StrCat("at most ", OutputConstraint::kMaxTextBytes));
  }
  if (params.ignore_eos) {
    return absl::InvalidArgumentError("ignore_eos and a constraint: the end is part of it");
  }
  if (params.min_tokens > 0) {
    return OutOfRange("min_tokens", params.min_tokens, "0 where the output is constrained");
  }
  return absl::OkStatus();
}

}  // namespace

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

absl::Status ValidateSamplingParams(const SamplingParams& params, int64_t vocab_size) {
  RETURN_IF_ERROR(CheckDistribution(params));
  RETURN_IF_ERROR(CheckPenalties(params));
  RETURN_IF_ERROR(CheckLogitBias(params, vocab_size));
  RETURN_IF_ERROR(CheckStop(params, vocab_size));
  RETURN_IF_ERROR(CheckConstraint(params));
  RETURN_IF_ERROR(CheckLogprobs("logprobs", params.num_logprobs));
  return CheckLogprobs("prompt_logprobs", params.num_prompt_logprobs);
}

}  // namespace lockstep
