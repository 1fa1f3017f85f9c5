#include "model/sampling/token_choice.h"

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

// Where a walk goes: from a source to steps_.
class TokenChooser::Steps {
 public:
  Steps(CandidateSource& source, const ChoiceRule& rule, std::vector<Step>& steps)
      : source_(source), rule_(rule), steps_(steps) {
    steps_.clear();
  }

  bool Next(double* weight) {
    next_ = source_.Next();
    if (!next_.has_value()) return false;
    *weight = rule_.WeightOf(next_->value);
    return true;
  }
  bool truncated() const { return source_.truncated(); }
  void Keep(double weight, double sum) {
    steps_.push_back({.token = next_->token, .weight = weight, .sum = sum});
  }
  int32_t size() const { return static_cast<int32_t>(steps_.size()); }
  double weight(int32_t step) const { return steps_[step].weight; }
  double sum(int32_t step) const { return steps_[step].sum; }

 private:
  CandidateSource& source_;
  const ChoiceRule& rule_;
  std::vector<Step>& steps_;
  std::optional<Candidate> next_;
};

std::optional<int32_t> TokenChooser::Choose(CandidateSource& source, const ChoiceRule& rule) {
  Steps steps(source, rule, steps_);
  if (!WalkTokens(rule, steps)) return std::nullopt;
  if (steps_.empty()) return 0;
  return steps_[ChooseStep(rule, steps)].token;
}

}  // namespace lockstep
