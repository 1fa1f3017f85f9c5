#include "model/sampling/adjust_logits.h"

#include <algorithm>
#include <array>
#include <bit>
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

// allowed: a bit of each.
void MaskOthers(std::span<float> row, std::span<const uint32_t> allowed) {
  LS_CHECK_EQ(allowed.size(), (row.size() + 31) / 32);
  for (size_t word = 0; word < allowed.size(); ++word) {
    const uint32_t bits = allowed[word];
    if (bits == ~uint32_t{0}) continue;
    const size_t first = word * 32;
    const size_t count = std::min<size_t>(32, row.size() - first);
    for (size_t i = 0; i < count; ++i) {
      if ((bits >> i & 1) == 0) row[first + i] = kMasked;
    }
  }
}

// Two words to an adjustment.
void AppendAllowed(std::span<const uint32_t> allowed, std::vector<LogitAdjustment>& adjustments) {
  static_assert(sizeof(LogitAdjustment) == 2 * sizeof(uint32_t));
  for (size_t i = 0; i < allowed.size(); i += 2) {
    const std::array<uint32_t, 2> words = {allowed[i], i + 1 < allowed.size() ? allowed[i + 1] : 0};
    adjustments.push_back(std::bit_cast<LogitAdjustment>(words));
  }
}

// What has been seen once the drafts have, too.
class Seen {
 public:
  explicit Seen(const OutputSoFar& output) : entries_(output.history.entries()) {
    if (output.drafts.empty() || !HasPenalties(output.params)) return;
    with_drafts_ = output.history.EntriesAfter(output.drafts);
    entries_ = with_drafts_;
  }
  Seen(const Seen&) = delete;
  std::span<const TokenHistory::Entry> entries() const { return entries_; }

 private:
  std::vector<TokenHistory::Entry> with_drafts_;
  std::span<const TokenHistory::Entry> entries_;
};

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

std::vector<TokenHistory::Entry> TokenHistory::EntriesAfter(
    std::span<const int32_t> outputs) const {
  std::vector<Entry> entries = entries_;
  if (!tracks_output_) return entries;
  for (const int32_t token : outputs) {
    if (token < vocab_.begin || token >= vocab_.end) continue;
    const auto known = index_.find(token);
    const auto from =
        entries.begin() + (known == index_.end() ? std::ssize(entries_) : known->second);
    const auto place = std::find_if(from, entries.end(),
                                    [token](const Entry& entry) { return entry.token == token; });
    if (place == entries.end()) {
      entries.push_back({.token = token, .num_outputs = 1});
    } else {
      ++place->num_outputs;
    }
  }
  return entries;
}

bool NeedsAdjusting(const SamplingParams& params, int32_t num_output_tokens,
                    std::span<const int32_t> eos_token_ids) {
  const bool masks_eos = !params.ignore_eos && !eos_token_ids.empty();
  return !params.logit_bias.empty() || HasPenalties(params) ||
         params.constraint.kind != OutputConstraint::Kind::kNone ||
         (num_output_tokens < params.min_tokens && (masks_eos || !params.stop_token_ids.empty()));
}

void AdjustLogits(std::span<float> row, Range vocab, const OutputSoFar& output) {
  LS_CHECK_EQ(static_cast<int64_t>(row.size()), vocab.size());
  const SamplingParams& params = output.params;
  const auto at = [&](int32_t token) -> float* {
    return token >= vocab.begin && token < vocab.end ? &row[token - vocab.begin] : nullptr;
  };
  for (const auto& [token, bias] : params.logit_bias) {
    if (float* logit = at(token)) *logit = Bounded(Bounded(*logit) + bias);
  }
  const Seen seen(output);
  for (const TokenHistory::Entry& entry : seen.entries()) {
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
  if (output.matcher != nullptr) MaskOthers(row, *output.matcher->Allowed(output.drafts));
  if (output.num_output_tokens >= params.min_tokens) return;
  const auto mask = [&](std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      if (float* logit = at(token)) *logit = kMasked;
    }
  };
  if (!params.ignore_eos) mask(output.eos_token_ids);
  mask(params.stop_token_ids);
}

void ListAdjustments(Range vocab, const OutputSoFar& output,
                     std::vector<LogitAdjustment>& adjustments, LogitsJob& job) {
  const SamplingParams& params = output.params;
  const auto add = [&](int32_t token, float amount) {
    if (token < vocab.begin || token >= vocab.end) return 0;
    adjustments.push_back({static_cast<int32_t>(token - vocab.begin), amount});
    return 1;
  };
  job.first_adjustment = static_cast<int32_t>(adjustments.size());
  for (const auto& [token, bias] : params.logit_bias) job.num_biases += add(token, bias);
  const Seen seen(output);
  for (const TokenHistory::Entry& entry : seen.entries()) {
    job.num_penalties += add(entry.token, static_cast<float>(entry.num_outputs));
  }
  job.repetition_penalty = params.repetition_penalty;
  job.frequency_penalty = params.frequency_penalty;
  job.presence_penalty = params.presence_penalty;
  if (output.num_output_tokens < params.min_tokens) {
    if (!params.ignore_eos) {
      for (const int32_t token : output.eos_token_ids) job.num_masks += add(token, 0.0f);
    }
    for (const int32_t token : params.stop_token_ids) job.num_masks += add(token, 0.0f);
  }
  if (output.matcher == nullptr) return;
  job.first_allowed = static_cast<int32_t>(adjustments.size());
  AppendAllowed(*output.matcher->Allowed(output.drafts), adjustments);
}

int64_t MostAdjustments(const OutputSoFar& output, int64_t part_width) {
  const SamplingParams& params = output.params;
  int64_t most = std::ssize(params.logit_bias) + std::ssize(params.stop_token_ids) +
                 std::ssize(output.eos_token_ids);
  if (HasPenalties(params)) {
    most += std::min(output.history.num_prompt_tokens() + output.num_output_tokens, part_width);
  }
  if (output.matcher != nullptr) most += AllowedAdjustments(part_width);
  return most;
}

}  // namespace lockstep
