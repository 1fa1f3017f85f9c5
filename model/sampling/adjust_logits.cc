#include "model/sampling/adjust_logits.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float Bounded(float value) {
  if (value != value) return kMasked;
  constexpr float kMax = std::numeric_limits<float>::max();
  return value > kMax ? kMax : value;
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

}  // namespace

void TokenHistory::Reset(const SamplingParams& params, Range vocab) {
  tracks_prompt_ = params.repetition_penalty != 1.0f;
  tracks_output_ = HasPenalties(params);
  num_prompt_tokens_ = 0;
  vocab_ = vocab;
  entries_.clear();
  index_.clear();
}

TokenHistory::Entry* TokenHistory::Find(int32_t token) {
  if (token < vocab_.begin || token >= vocab_.end) return nullptr;
  const auto [place, is_new] = index_.try_emplace(token, static_cast<int32_t>(entries_.size()));
  if (is_new) entries_.push_back({.token = token, .num_outputs = 0});
  return &entries_[place->second];
}

void TokenHistory::AddPrompt(std::span<const int32_t> tokens) {
  if (!tracks_prompt_) return;
  const absl::flat_hash_set<int32_t> different(tokens.begin(), tokens.end());
  num_prompt_tokens_ += std::ssize(different);
  for (const int32_t token : tokens) Find(token);
}

void TokenHistory::AddOutput(int32_t token) {
  if (!tracks_output_) return;
  if (Entry* entry = Find(token); entry != nullptr) ++entry->num_outputs;
}

bool NeedsAdjusting(const SamplingParams& params, int32_t num_output_tokens,
                    std::span<const int32_t> eos_token_ids) {
  const bool masks_eos = !params.ignore_eos && !eos_token_ids.empty();
  return !params.logit_bias.empty() || HasPenalties(params) ||
         (num_output_tokens < params.min_tokens && (masks_eos || !params.stop_token_ids.empty()));
}

void AdjustLogits(std::span<float> row, Range vocab, const SamplingParams& params,
                  const TokenHistory& history, int32_t num_output_tokens,
                  std::span<const int32_t> eos_token_ids) {
  LS_CHECK_EQ(static_cast<int64_t>(row.size()), vocab.size());
  const auto at = [&](int32_t token) -> float* {
    return token >= vocab.begin && token < vocab.end ? &row[token - vocab.begin] : nullptr;
  };
  for (const auto& [token, bias] : params.logit_bias) {
    if (float* logit = at(token)) *logit = Bounded(Bounded(*logit) + bias);
  }
  for (const TokenHistory::Entry& entry : history.entries()) {
    float* logit = at(entry.token);
    float value = Bounded(*logit);
    value = Bounded(value > 0.0f ? value / params.repetition_penalty
                                 : value * params.repetition_penalty);
    if (entry.num_outputs > 0) {
      value -= params.frequency_penalty * static_cast<float>(entry.num_outputs);
      value -= params.presence_penalty;
    }
    *logit = Bounded(value);
  }
  if (num_output_tokens >= params.min_tokens) return;
  const auto mask = [&](std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      if (float* logit = at(token)) *logit = kMasked;
    }
  };
  if (!params.ignore_eos) mask(eos_token_ids);
  mask(params.stop_token_ids);
}

void ListAdjustments(Range vocab, const SamplingParams& params, const TokenHistory& history,
                     int32_t num_output_tokens, std::span<const int32_t> eos_token_ids,
                     std::vector<LogitAdjustment>& adjustments, LogitsJob& job) {
  const auto add = [&](int32_t token, float amount) {
    if (token < vocab.begin || token >= vocab.end) return 0;
    adjustments.push_back({static_cast<int32_t>(token - vocab.begin), amount});
    return 1;
  };
  job.first_adjustment = static_cast<int32_t>(adjustments.size());
  for (const auto& [token, bias] : params.logit_bias) job.num_biases += add(token, bias);
  for (const TokenHistory::Entry& entry : history.entries()) {
    job.num_penalties += add(entry.token, static_cast<float>(entry.num_outputs));
  }
  job.repetition_penalty = params.repetition_penalty;
  job.frequency_penalty = params.frequency_penalty;
  job.presence_penalty = params.presence_penalty;
  if (num_output_tokens >= params.min_tokens) return;
  if (!params.ignore_eos) {
    for (const int32_t token : eos_token_ids) job.num_masks += add(token, 0.0f);
  }
  for (const int32_t token : params.stop_token_ids) job.num_masks += add(token, 0.0f);
}

int64_t MostAdjustments(const SamplingParams& params, const TokenHistory& history,
                        int32_t num_output_tokens, std::span<const int32_t> eos_token_ids,
                        int64_t part_width) {
  const int64_t num_others =
      std::ssize(params.logit_bias) + std::ssize(params.stop_token_ids) + std::ssize(eos_token_ids);
  if (!HasPenalties(params)) return num_others;
  return num_others + std::min(history.num_prompt_tokens() + num_output_tokens, part_width);
}

}  // namespace lockstep
