#include "model/sampling/token_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace lockstep {
namespace {

constexpr uint32_t kSignBit = 0x80000000u;

// Positive floats order like their bits, negative ones the other way round. -0 and +0 are equal.
uint32_t DescendingKey(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits & kSignBit) != 0 ? bits : ~bits & ~kSignBit;
}

float ValueOfKey(uint32_t key) {
  return std::bit_cast<float>((key & kSignBit) != 0 ? key : ~key & ~kSignBit);
}

bool Unfiltered(const ChoiceRule& rule) {
  return rule.top_k == 0 && rule.top_p >= 1.0 && rule.min_p == 0.0;
}

}  // namespace

std::optional<Candidate> MergedCandidates::Next() {
  List* first = nullptr;
  for (List& list : lists_) {
    if (list.candidates.empty()) {
      if (!list.cut) continue;
      truncated_ = true;
      return std::nullopt;
    }
    if (first == nullptr || Before(list.candidates.front(), first->candidates.front())) {
      first = &list;
    }
  }
  if (first == nullptr) return std::nullopt;
  const Candidate candidate = first->candidates.front();
  first->candidates = first->candidates.subspan(1);
  return candidate;
}

void WholeRow::Reset(std::span<const float> row) {
  tokens_.clear();
  next_ = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] > -std::numeric_limits<float>::infinity()) {
      tokens_.push_back({.key = DescendingKey(row[i]), .token = static_cast<int32_t>(i)});
    }
  }
  Sort();
}

void WholeRow::Sort() {
  constexpr int kDigitBits = 11;
  constexpr uint32_t kNumDigits = 1 << kDigitBits;
  scratch_.resize(tokens_.size());
  for (int shift = 0; shift < 32; shift += kDigitBits) {
    const auto digit = [&](const Keyed& keyed) { return (keyed.key >> shift) % kNumDigits; };
    std::array<uint32_t, kNumDigits + 1> begins{};
    for (const Keyed& keyed : tokens_) ++begins[digit(keyed) + 1];
    for (uint32_t i = 0; i < kNumDigits; ++i) begins[i + 1] += begins[i];
    for (const Keyed& keyed : tokens_) scratch_[begins[digit(keyed)]++] = keyed;
    tokens_.swap(scratch_);
  }
}

std::optional<Candidate> WholeRow::Next() {
  if (next_ == tokens_.size()) return std::nullopt;
  const Keyed& keyed = tokens_[next_++];
  return Candidate{.value = ValueOfKey(keyed.key), .token = keyed.token};
}

bool TokenChooser::Walk(CandidateSource& source, const ChoiceRule& rule) {
  steps_.clear();
  const bool unfiltered = Unfiltered(rule);
  // With top_k, top_p is a share of the top_k tokens' weight: all of them must be walked.
  const bool needs_all_top_k = rule.top_k > 0 && rule.top_p < 1.0;
  const double enough = unfiltered ? rule.uniform * rule.total : rule.top_p * rule.total;
  double sum = 0.0;
  while (rule.top_k == 0 || steps_.size() < static_cast<size_t>(rule.top_k)) {
    const std::optional<Candidate> candidate = source.Next();
    if (!candidate.has_value()) return !source.truncated();
    const double weight =
        PortableExp((static_cast<double>(candidate->value) - rule.max) * rule.inverse_temperature);
    if (weight == 0.0 || (weight < rule.min_p && !needs_all_top_k)) return true;
    sum += weight;
    steps_.push_back({.token = candidate->token, .weight = weight, .sum = sum});
    if (unfiltered && sum > enough) return true;
    if (rule.top_k == 0 && rule.top_p < 1.0 && sum >= enough) return true;
  }
  return true;
}

void TokenChooser::Trim(const ChoiceRule& rule) {
  if (rule.top_k > 0 && rule.top_p < 1.0) {
    const double enough = rule.top_p * steps_.back().sum;
    const auto last = std::find_if(steps_.begin(), steps_.end(),
                                   [&](const Step& step) { return step.sum >= enough; });
    if (last != steps_.end()) steps_.erase(last + 1, steps_.end());
  }
  while (steps_.size() > 1 && steps_.back().weight < rule.min_p) steps_.pop_back();
}

std::optional<int32_t> TokenChooser::Choose(CandidateSource& source, const ChoiceRule& rule) {
  if (!Walk(source, rule)) return std::nullopt;
  if (steps_.empty()) return 0;
  Trim(rule);
  const double allowed = Unfiltered(rule) ? rule.total : steps_.back().sum;
  const double target = rule.uniform * allowed;
  const auto chosen = std::find_if(steps_.begin(), steps_.end(),
                                   [&](const Step& step) { return step.sum > target; });
  return chosen == steps_.end() ? steps_.back().token : chosen->token;
}

}  // namespace lockstep
