#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "model/grammar/grammar.h"
#include "model/grammar/utf8_ranges.h"

namespace lockstep::grammar {
namespace {

constexpr int64_t kTooLarge = int64_t{kMaxStates} + 1;

int64_t Bounded(int64_t size) { return std::min(size, kTooLarge); }

}  // namespace

GrammarBuilder::Part GrammarBuilder::Add(Node node) {
  node.num_states = Bounded(std::max<int64_t>(node.num_states, 1));
  nodes_.push_back(std::move(node));
  return static_cast<Part>(nodes_.size() - 1);
}

GrammarBuilder::Part GrammarBuilder::Text(std::string_view bytes) {
  return Add({.kind = Kind::kText,
              .text = {bytes.begin(), bytes.end()},
              .num_states = static_cast<int64_t>(bytes.size())});
}

GrammarBuilder::Part GrammarBuilder::Byte(std::span<const ByteRange> ranges) {
  return Add({.kind = Kind::kBytes,
              .bytes = {ranges.begin(), ranges.end()},
              .num_states = std::ssize(ranges)});
}

GrammarBuilder::Part GrammarBuilder::Character(std::span<const CodePointRange> ranges) {
  std::vector<ByteRange> single;
  std::vector<Part> choices;
  for (const std::vector<ByteRange>& sequence : Utf8Sequences(ranges)) {
    if (sequence.size() == 1) {
      single.push_back(sequence[0]);
      continue;
    }
    std::vector<Part> parts;
    for (const ByteRange& bytes : sequence) parts.push_back(Byte({&bytes, 1}));
    choices.push_back(Sequence(std::move(parts)));
  }
  if (!single.empty()) choices.push_back(Byte(single));
  return choices.size() == 1 ? choices[0] : Choice(std::move(choices));
}

GrammarBuilder::Part GrammarBuilder::Sequence(std::vector<Part> parts) {
  int64_t num_states = 0;
  for (const Part part : parts) num_states += nodes_[static_cast<size_t>(part)].num_states;
  return Add({.kind = Kind::kSequence, .parts = std::move(parts), .num_states = num_states});
}

GrammarBuilder::Part GrammarBuilder::Choice(std::vector<Part> parts) {
  int64_t num_states = 0;
  for (const Part part : parts) num_states += nodes_[static_cast<size_t>(part)].num_states;
  return Add({.kind = Kind::kChoice, .parts = std::move(parts), .num_states = num_states});
}

GrammarBuilder::Part GrammarBuilder::OneOf(std::vector<std::string> texts) {
  if (texts.empty()) return Choice({});
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return OneText(texts, 0);
}

GrammarBuilder::Part GrammarBuilder::OneText(std::span<const std::string> sorted,
                                             size_t num_shared) {
  // What the first and the last share, all do.
  const std::string& first = sorted.front();
  const std::string& last = sorted.back();
  const size_t num_equal = static_cast<size_t>(
      std::mismatch(first.begin(), first.end(), last.begin(), last.end()).first - first.begin());
  const Part shared = Text(first.substr(num_shared, num_equal - num_shared));
  if (sorted.size() == 1) return shared;
  std::vector<Part> choices;
  for (size_t i = 0; i < sorted.size();) {
    if (sorted[i].size() == num_equal) {
      choices.push_back(Empty());
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < sorted.size() && sorted[end][num_equal] == sorted[i][num_equal]) ++end;
    choices.push_back(OneText(sorted.subspan(i, end - i), num_equal));
    i = end;
  }
  return Sequence({shared, Choice(std::move(choices))});
}

GrammarBuilder::Part GrammarBuilder::Repeat(Part part, int64_t min, std::optional<int64_t> max) {
  LS_CHECK(min >= 0 && (!max.has_value() || *max >= min)) << "repeats " << min << " times";
  const int64_t copies = std::min(max.value_or(min + 1), kTooLarge);
  const int64_t num_states = copies * (nodes_[static_cast<size_t>(part)].num_states + 1);
  return Add(
      {.kind = Kind::kRepeat, .parts = {part}, .min = min, .max = max, .num_states = num_states});
}

GrammarBuilder::Rule GrammarBuilder::Declare() {
  rules_.emplace_back();
  return static_cast<Rule>(rules_.size() - 1);
}

void GrammarBuilder::Define(Rule rule, Part body) {
  std::optional<Part>& defined = rules_[static_cast<size_t>(rule)];
  LS_CHECK(!defined.has_value()) << "rule " << rule << " is defined twice";
  defined = body;
}

GrammarBuilder::Part GrammarBuilder::Call(Rule rule) {
  return Add({.kind = Kind::kCall, .rule = rule});
}

GrammarBuilder::Part GrammarBuilder::MakeRule(Part body) {
  const Rule rule = Declare();
  Define(rule, body);
  return Call(rule);
}

}  // namespace lockstep::grammar
