// The definition of sampling in plain loops over a whole row, in double precision: what
// VocabSampler is tested against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/philox.h"
#include "model/sampling/sampling_params.h"

namespace lockstep::testing {

// What an output's constraint allows of the next token.
struct PlainConstraint {
  std::vector<std::pair<int32_t, int32_t>>
      allowed;  // first and last tokens, ends of texts left out
  bool may_end = false;

  bool Allows(int32_t token, const std::vector<int32_t>& eos_token_ids) const {
    if (std::count(eos_token_ids.begin(), eos_token_ids.end(), token) > 0) return may_end;
    return std::any_of(allowed.begin(), allowed.end(), [&](const auto& range) {
      return token >= range.first && token <= range.second;
    });
  }
};

struct PlainSequence {
  SamplingParams params;
  std::optional<PlainConstraint> constraint;
  std::vector<int32_t> prompt;
  std::vector<int32_t> output;
  uint32_t sequence_index = 0;
  uint64_t position() const { return prompt.size() + output.size(); }
};

inline std::vector<float> PlainProcessed(std::vector<float> logits, const PlainSequence& sequence,
                                         const std::vector<int32_t>& eos_token_ids) {
  const float kNegInf = -std::numeric_limits<float>::infinity();
  const SamplingParams& params = sequence.params;
  for (float& logit : logits) {
    if (std::isnan(logit)) logit = kNegInf;
  }
  for (const auto& [token, bias] : params.logit_bias) logits[token] += bias;
  for (int32_t token = 0; token < static_cast<int32_t>(logits.size()); ++token) {
    const auto count = [&](const std::vector<int32_t>& tokens) {
      return static_cast<int>(std::count(tokens.begin(), tokens.end(), token));
    };
    const int num_outputs = count(sequence.output);
    if (num_outputs + count(sequence.prompt) == 0) continue;
    float& logit = logits[token];
    if (logit > 0) {
      logit /= params.repetition_penalty;
    } else {
      logit *= params.repetition_penalty;
    }
    if (num_outputs == 0) continue;
    logit -= params.frequency_penalty * static_cast<float>(num_outputs);
    logit -= params.presence_penalty;
  }
  for (int32_t token = 0; token < std::ssize(logits); ++token) {
    if (sequence.constraint && !sequence.constraint->Allows(token, eos_token_ids)) {
      logits[token] = kNegInf;
    }
  }
  if (static_cast<int>(sequence.output.size()) < params.min_tokens) {
    if (!params.ignore_eos) {
      for (const int32_t token : eos_token_ids) logits[token] = kNegInf;
    }
    for (const int32_t token : params.stop_token_ids) logits[token] = kNegInf;
  }
  return logits;
}

// Token ids in the order of choice.
inline std::vector<int32_t> PlainOrder(const std::vector<float>& logits) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity()) {
      order.push_back(static_cast<int32_t>(i));
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return order;
}

// The choice, with u, top_p and min_p moved by the given relative amounts.
inline int32_t PlainChoice(const std::vector<float>& processed, const std::vector<int32_t>& order,
                           const PlainSequence& sequence, double move_u, double move_top_p,
                           double move_min_p) {
  const SamplingParams& params = sequence.params;
  if (order.empty()) return 0;
  if (params.temperature == 0.0f) return order[0];
  std::vector<double> weights;
  for (const int32_t token : order) {
    weights.push_back(
        std::exp((double{processed[token]} - double{processed[order[0]]}) / params.temperature));
  }
  if (params.top_k > 0 && weights.size() > static_cast<size_t>(params.top_k)) {
    weights.resize(params.top_k);
  }
  double mass = 0.0;
  for (const double weight : weights) mass += weight;
  if (params.top_p < 1.0f) {
    double sum = 0.0;
    size_t kept = 0;
    while (kept < weights.size() && sum < params.top_p * (1 + move_top_p) * mass) {
      sum += weights[kept++];
    }
    weights.resize(kept);
  }
  while (weights.size() > 1 && weights.back() < params.min_p * (1 + move_min_p)) {
    weights.pop_back();
  }
  mass = 0.0;
  for (const double weight : weights) mass += weight;
  const double u = TokenUniform(params.seed, sequence.sequence_index, sequence.position());
  double sum = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum > u * (1 + move_u) * mass) return order[i];
  }
  return order[weights.size() - 1];
}

// The tokens that rounding may choose: usually one.
inline std::set<int32_t> PlainChoices(const std::vector<float>& processed,
                                      const PlainSequence& sequence) {
  constexpr double kMove = 2e-6;
  const std::vector<int32_t> order = PlainOrder(processed);
  std::set<int32_t> choices;
  for (const double u : {-kMove, 0.0, kMove}) {
    for (const double top_p : {-kMove, 0.0, kMove}) {
      for (const double min_p : {-kMove, 0.0, kMove}) {
        choices.insert(PlainChoice(processed, order, sequence, u, top_p, min_p));
      }
    }
  }
  return choices;
}

inline double PlainLogSumExp(const std::vector<float>& logits) {
  double max = -std::numeric_limits<double>::infinity();
  for (const float logit : logits) {
    if (logit > max) max = logit;
  }
  double sum = 0.0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) sum += std::exp(double{logit} - max);
  }
  return max + std::log(sum);
}

}  // namespace lockstep::testing
