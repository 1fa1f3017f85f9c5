// Rows of logits with every kind of sampling parameters, for tests of samplers.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/sampling/vocab_sampler.h"
#include "model/tokenizer/utf8.h"
#include "parallel/partition.h"
#include "tests/model/sampling/plain_sampler.h"

namespace lockstep::testing {

// Rows of whole logits and what is wanted of each; run under any layout.
struct Workload {
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  std::vector<std::vector<float>> logits;
  std::vector<PlainSequence> sequences;
  std::vector<int32_t> prompt_targets;  // -1: choose

  void Add(std::vector<float> row, PlainSequence sequence, int32_t prompt_target = -1) {
    logits.push_back(std::move(row));
    sequences.push_back(std::move(sequence));
    prompt_targets.push_back(prompt_target);
  }
};

// Matchers of constraints, over a vocabulary in which every token is a character.
class ConstraintWorkload {
 public:
  ConstraintWorkload(const Workload& workload, Range vocab)
      : vocabulary_(grammar::TokenTexts(static_cast<int32_t>(workload.vocab_size),
                                        [&](int32_t token) {
                                          const auto& ends = workload.eos_token_ids;
                                          const bool ends_text =
                                              std::count(ends.begin(), ends.end(), token) > 0;
                                          return ends_text ? std::string() : TextOf(token);
                                        }),
                    static_cast<int32_t>(vocab.begin), static_cast<int32_t>(vocab.end),
                    workload.eos_token_ids) {}

  grammar::OutputMatcher* Add(const PlainConstraint& constraint) {
    grammar::GrammarBuilder builder;
    std::vector<grammar::CodePointRange> ranges;
    for (const auto& [first, last] : constraint.allowed) {
      ranges.push_back({CharacterOf(first), CharacterOf(last)});
    }
    grammar::GrammarBuilder::Part part = builder.Character(ranges);
    if (constraint.may_end) part = builder.Optional(part);
    matchers_.emplace_back(
        std::make_shared<grammar::TokenMasks>(builder.Build(part).value(), vocabulary_));
    return &matchers_.back();
  }

 private:
  // There are no surrogates from there on.
  static char32_t CharacterOf(int32_t token) { return 0x10000 + static_cast<char32_t>(token); }
  static std::string TextOf(int32_t token) {
    std::string text;
    AppendCodePoint(CharacterOf(token), text);
    return text;
  }

  grammar::MaskedVocabulary vocabulary_;
  std::deque<grammar::OutputMatcher> matchers_;
};

// One rank's part of it, as the step loop hands it to a sampler. The workload must outlive it.
class RankWorkload {
 public:
  RankWorkload(const Workload& workload, Range vocab) : histories_(workload.logits.size()) {
    for (size_t i = 0; i < workload.logits.size(); ++i) {
      const PlainSequence& sequence = workload.sequences[i];
      logits_.insert(logits_.end(), workload.logits[i].begin() + vocab.begin,
                     workload.logits[i].begin() + vocab.end);
      histories_[i].Reset(sequence.params, vocab);
      histories_[i].AddPrompt(sequence.prompt);
      for (const int32_t token : sequence.output) histories_[i].AddOutput(token);
      if (sequence.constraint && constraints_ == nullptr) {
        constraints_ = std::make_unique<ConstraintWorkload>(workload, vocab);
      }
      rows_.push_back(
          {.params = &sequence.params,
           .prompt_target = workload.prompt_targets[i],
           .history = &histories_[i],
           .matcher = sequence.constraint ? constraints_->Add(*sequence.constraint) : nullptr,
           .sequence_index = sequence.sequence_index,
           .position = sequence.position(),
           .num_output_tokens = static_cast<int32_t>(sequence.output.size())});
    }
  }
  RankWorkload(const RankWorkload&) = delete;
  RankWorkload& operator=(const RankWorkload&) = delete;

  std::span<const LogitsRow> rows() const { return rows_; }
  const std::vector<float>& logits() const { return logits_; }  // [rows, vocab]

 private:
  std::unique_ptr<ConstraintWorkload> constraints_;
  std::vector<TokenHistory> histories_;
  std::vector<float> logits_;
  std::vector<LogitsRow> rows_;
};

inline std::vector<float> RandomRow(std::mt19937& random, int64_t vocab_size) {
  // Sharp, usual, flat; some on a grid, for ties.
  const float scale = std::array{8.0f, 3.0f, 0.01f}[random() % 3];
  const bool on_grid = random() % 4 == 0;
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> row(vocab_size);
  for (float& logit : row) {
    logit = normal(random);
    if (on_grid) logit = std::round(logit);
  }
  return row;
}

template <typename T>
T OneOf(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

// To few tokens or to most, of which one at least can be chosen.
inline void Constrain(int64_t vocab_size, PlainSequence& sequence) {
  std::mt19937 random(static_cast<uint32_t>(sequence.params.seed));
  const auto token = [&] { return static_cast<int32_t>(random() % vocab_size); };
  PlainConstraint& constraint = sequence.constraint.emplace();
  const int32_t one = token();
  constraint.allowed = {{one, one}};
  for (uint32_t i = random() % 4; i > 0; --i) {
    const int32_t a = token();
    const int32_t b = token();
    constraint.allowed.emplace_back(std::min(a, b), std::max(a, b));
  }
  constraint.may_end = vocab_size < 16 || random() % 2 == 0;
  sequence.params.constraint = {OutputConstraint::Kind::kRegex, "as the sequence has it"};
  sequence.params.min_tokens = 0;
  sequence.params.ignore_eos = false;
}

inline PlainSequence RandomSequence(std::mt19937& random, int64_t vocab_size) {
  const auto token = [&] { return static_cast<int32_t>(random() % vocab_size); };
  PlainSequence sequence;
  SamplingParams& params = sequence.params;
  params.temperature = OneOf(random, {0.0f, 0.01f, 0.3f, 1.0f, 1.3f, 100.0f});
  params.top_k = OneOf(random, {0, 0, 1, 5, 300, 2000});
  params.top_p = OneOf(random, {1.0f, 0.999f, 0.9f, 0.3f});
  params.min_p = OneOf(random, {0.0f, 0.0f, 0.05f, 1.0f});
  params.repetition_penalty = OneOf(random, {1.0f, 1.0f, 1.3f, 0.5f});
  params.presence_penalty = OneOf(random, {0.0f, 0.0f, 0.7f, -2.0f});
  params.frequency_penalty = OneOf(random, {0.0f, 0.0f, 0.4f, -1.0f});
  params.seed = random();
  params.min_tokens = OneOf(random, {0, 0, 3});
  params.ignore_eos = random() % 4 == 0;
  params.num_logprobs = OneOf(random, {-1, 0, 5, 20});
  params.num_prompt_logprobs = OneOf(random, {0, 5});
  for (int32_t i = random() % 3 == 0 ? 8 : 0; i > 0; --i) {
    params.logit_bias.emplace_back(i * 7, OneOf(random, {-100.0f, -1.0f, 0.5f, 100.0f}));
  }
  for (uint32_t i = random() % 3; i > 0; --i) params.stop_token_ids.push_back(token());
  for (uint32_t i = 1 + random() % 20; i > 0; --i) sequence.prompt.push_back(token());
  for (uint32_t i = random() % 6; i > 0; --i) sequence.output.push_back(token());
  if (!sequence.output.empty()) sequence.output.push_back(sequence.output[0]);
  sequence.sequence_index = random() % 3;
  if (sequence.params.seed % 5 == 0) Constrain(vocab_size, sequence);
  return sequence;
}

inline Workload RandomWorkload(uint32_t seed, int64_t vocab_size, int num_rows) {
  std::mt19937 random(seed);
  Workload workload{.vocab_size = vocab_size,
                    .eos_token_ids = {2, static_cast<int32_t>(vocab_size - 1)},
                    .logits = {},
                    .sequences = {},
                    .prompt_targets = {}};
  for (int i = 0; i < num_rows; ++i) {
    const int32_t target = random() % 8 == 0 ? static_cast<int32_t>(random() % vocab_size) : -1;
    workload.Add(RandomRow(random, vocab_size), RandomSequence(random, vocab_size), target);
  }
  return workload;
}

// Rows of nothing but NaN, of -infinity or of zeros, and some with a few of these and +infinity.
inline Workload HostileWorkload() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Workload workload = RandomWorkload(7, 513, 40);
  for (size_t i = 0; i < workload.logits.size(); ++i) {
    std::vector<float>& row = workload.logits[i];
    if (i % 5 == 0) row.assign(row.size(), kNan);
    if (i % 5 == 1) row.assign(row.size(), -kInf);
    if (i % 5 == 2) row[i] = kInf, row[3 * i] = kNan, row[4 * i] = -kInf;
    if (i % 5 == 3) row.assign(row.size(), 0.0f), row[70] = -0.0f;
  }
  return workload;
}

// Rows of which many need more than all ranks' 256 largest logits.
inline Workload DeepWorkload(uint32_t seed, int64_t vocab_size, int num_rows,
                             const SamplingParams& params) {
  Workload workload = RandomWorkload(seed, vocab_size, num_rows);
  for (size_t i = 0; i < workload.sequences.size(); ++i) {
    SamplingParams& mine = workload.sequences[i].params;
    const uint64_t seed_of_row = mine.seed;
    mine = params;
    mine.seed = seed_of_row;
    workload.sequences[i].constraint.reset();
    if (i % 3 == 0) mine.top_p = 1.0f;
  }
  workload.prompt_targets.assign(workload.prompt_targets.size(), -1);
  return workload;
}

// Llama's defaults, but hotter.
inline SamplingParams TopP() {
  SamplingParams params;
  params.temperature = 1.5f;
  params.top_p = 0.95f;
  params.ignore_eos = true;
  return params;
}

inline SamplingParams Penalties() {
  SamplingParams params = TopP();
  params.repetition_penalty = 1.2f;
  params.frequency_penalty = 0.3f;
  return params;
}

}  // namespace lockstep::testing
