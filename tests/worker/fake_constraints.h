// Texts for FakeStage's language model: token t is the character ' ' + t, but for the one that ends
// them and those that would not be printable.
#pragma once

#include <string>
#include <vector>

#include "model/grammar/constraint.h"
#include "model/grammar/constraint_cache.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"
#include "tests/support/grammar_texts.h"
#include "tests/worker/fake_stage.h"

namespace lockstep::testing {

inline constexpr int32_t kFakeEos = 2;

inline std::string FakeText(int32_t token) {
  const bool is_text = token != kFakeEos && token < 0x7F - ' ';
  return is_text ? std::string(1, static_cast<char>(' ' + token)) : std::string();
}

inline SamplingParams Constrained(SamplingParams params, const std::string& regex) {
  params.constraint = {OutputConstraint::Kind::kRegex, regex};
  return params;
}

// A rank's.
class FakeConstraints {
 public:
  explicit FakeConstraints(RankGroups& groups, int64_t vocab_size = kFakeVocab)
      : vocabulary_(MakeVocabulary(groups, vocab_size)), cache_([this] { return &vocabulary_; }) {}
  FakeConstraints(const FakeConstraints&) = delete;

  grammar::ConstraintCache* cache() { return &cache_; }

 private:
  static grammar::MaskedVocabulary MakeVocabulary(RankGroups& groups, int64_t vocab_size) {
    ShardedSizes sizes;
    sizes.vocab_size = vocab_size;
    const Range part = VocabOf(sizes, groups.tp->size(), groups.tp->rank());
    return {grammar::TokenTexts(static_cast<int32_t>(vocab_size), FakeText),
            static_cast<int32_t>(part.begin),
            static_cast<int32_t>(part.end),
            {kFakeEos}};
  }

  grammar::MaskedVocabulary vocabulary_;
  grammar::ConstraintCache cache_;
};

// What the model continues `tokens` with, greedily: the next token where it fits, else the first
// that does, as all others are alike; and where the text may not go on, its end.
inline std::vector<int32_t> FakeConstrainedContinuation(std::vector<int32_t> tokens,
                                                        const std::string& regex, int count) {
  const grammar::Grammar grammar =
      grammar::CompileConstraint({OutputConstraint::Kind::kRegex, regex}).value();
  std::string text;
  bool has_ended = false;
  const auto fits = [&](int32_t token) {
    if (token == kFakeEos) return has_ended || Matches(grammar, text);
    return !has_ended && !FakeText(token).empty() && IsPrefix(grammar, text + FakeText(token));
  };
  const size_t num_given = tokens.size();
  for (int i = 0; i < count; ++i) {
    int32_t token = NextToken(tokens.back(), static_cast<int64_t>(tokens.size()) - 1);
    if (!fits(token)) {
      token = 0;
      while (!fits(token)) ++token;
    }
    has_ended = has_ended || token == kFakeEos;
    text += FakeText(token);
    tokens.push_back(token);
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(num_given), tokens.end()};
}

}  // namespace lockstep::testing
