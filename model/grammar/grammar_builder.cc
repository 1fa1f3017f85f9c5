#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/check.h"
#include "model/grammar/grammar.h"

namespace lockstep::grammar {
namespace {

constexpr int64_t kTooLarge = int64_t{kMaxStates} + 1;

int64_t Bounded(int64_t size) { return std::min(size, kTooLarge); }

// The characters whose UTF-8 has so many bytes, from the first to the last; surrogates have none.
struct Utf8Length {
  CodePointRange range;
  int num_bytes = 1;
};
constexpr Utf8Length kUtf8Lengths[] = {
    {{0x0, 0x7F}, 1},      {{0x80, 0x7FF}, 2},       {{0x800, 0xD7FF}, 3},
    {{0xE000, 0xFFFF}, 3}, {{0x10000, 0x10FFFF}, 4},
};

std::array<uint8_t, 4> EncodeUtf8(char32_t character, int num_bytes) {
  constexpr uint8_t kLeads[] = {0x00, 0x00, 0xC0, 0xE0, 0xF0};
  std::array<uint8_t, 4> bytes = {};
  for (int i = num_bytes - 1; i > 0; --i) {
    bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(0x80 | (character & 0x3F));
    character >>= 6;
  }
  bytes[0] = static_cast<uint8_t>(kLeads[num_bytes] | character);
  return bytes;
}

// Cuts a range of characters of one length until each piece is all sequences of one byte range
// after the other. The cuts are where a lower byte does not run through all of its values
// (Thompson's UTF-8 automata; Cox, "Regular Expression Matching in the Wild", 2010).
void SplitUtf8(CodePointRange range, int num_bytes,
               std::vector<std::vector<ByteRange>>& sequences) {
  for (int i = 1; i < num_bytes; ++i) {
    const char32_t low_bits = (char32_t{1} << (6 * i)) - 1;
    if ((range.first & ~low_bits) == (range.last & ~low_bits)) continue;
    if ((range.first & low_bits) != 0) {
      SplitUtf8({range.first, range.first | low_bits}, num_bytes, sequences);
      SplitUtf8({(range.first | low_bits) + 1, range.last}, num_bytes, sequences);
      return;
    }
    if ((range.last & low_bits) != low_bits) {
      SplitUtf8({range.first, (range.last & ~low_bits) - 1}, num_bytes, sequences);
      SplitUtf8({range.last & ~low_bits, range.last}, num_bytes, sequences);
      return;
    }
  }
  const auto first = EncodeUtf8(range.first, num_bytes);
  const auto last = EncodeUtf8(range.last, num_bytes);
  std::vector<ByteRange>& sequence = sequences.emplace_back();
  for (size_t i = 0; i < static_cast<size_t>(num_bytes); ++i) {
    sequence.push_back({first[i], last[i]});
  }
}

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
  std::vector<std::vector<ByteRange>> sequences;
  for (const CodePointRange& range : ranges) {
    for (const auto& [length, num_bytes] : kUtf8Lengths) {
      const char32_t first = std::max(range.first, length.first);
      const char32_t last = std::min(range.last, length.last);
      if (first <= last) SplitUtf8({first, last}, num_bytes, sequences);
    }
  }
  std::vector<ByteRange> single;
  std::vector<Part> choices;
  for (const std::vector<ByteRange>& sequence : sequences) {
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
