// How the next token of a sequence is chosen. Validated where it arrives (controller), carried to
// the ranks whole, once.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/grammar/output_constraint.h"

namespace lockstep {

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy; else [0.01, 100]
  int32_t top_k = 0;         // 0 = off
  float top_p = 1.0f;        // (0, 1]; 1 = off
  float min_p = 0.0f;        // [0, 1]; 0 = off
  float repetition_penalty =
      1.0f;  // (0, 10]; over prompt and output (CTRL, Keskar 2019, section 4.1)
  float presence_penalty = 0.0f;                      // [-2, 2]; over output
  float frequency_penalty = 0.0f;                     // [-2, 2]; over output
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token id, [-100, 100])
  uint64_t seed = 0;
  int32_t max_tokens = 16;
  int32_t min_tokens = 0;  // until then, EOS and stop_token_ids cannot be chosen
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  int32_t num_logprobs =
      -1;  // -1 = none; 0 = the chosen token's; N = and the N most likely, at most kMaxLogprobs
  int32_t num_prompt_logprobs = -1;  // likewise for each prompt token but the first
  OutputConstraint constraint;       // neither with ignore_eos nor with min_tokens

  static constexpr int kMaxLogprobs = 20;
  static constexpr float kMinTemperature = 0.01f;  // of those that are not greedy
  static constexpr int kMaxLogitBias = 1024;
  static constexpr int kMaxStopTokenIds = 64;
  bool operator==(const SamplingParams&) const = default;
};

// In place of a token that cannot be chosen, as no logit is a number above -infinity: activations
// have left the range of their type.
inline constexpr int32_t kNoToken = -1;

// INVALID_ARGUMENT naming the field, its value and the limits; NaN is never inside a limit.
absl::Status ValidateSamplingParams(const SamplingParams& params, int64_t vocab_size);

bool HasPenalties(const SamplingParams& params);

// A token with the natural logarithm of its probability under the model (before temperature and
// penalties).
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
  bool operator==(const TokenLogprob&) const = default;
};

// A token's own logprob and the most likely alternatives, most likely first (ties: lower id first).
struct LogprobInfo {
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
  bool operator==(const LogprobInfo&) const = default;
};

}  // namespace lockstep
