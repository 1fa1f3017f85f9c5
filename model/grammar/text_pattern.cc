#include "model/grammar/text_pattern.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/regex.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

constexpr size_t kMaxSets = 256;            // one a byte
constexpr size_t kMaxCountedPlaces = 8192;  // each takes some states

// A state of the pattern's automaton, and how many characters were read before it, as far as that
// matters.
using CountedPlace = std::pair<int32_t, int64_t>;

}  // namespace

absl::StatusOr<TextPattern> TextPattern::Parse(std::string_view pattern, bool is_anchored,
                                               SchemaWork& work) {
  RETURN_IF_ERROR(work.Take(std::ssize(pattern)));
  std::vector<CharacterRanges> sets;
  const auto number_set = [&](GrammarBuilder& builder, std::span<const CodePointRange> ranges) {
    sets.emplace_back(ranges.begin(), ranges.end());
    const auto number = static_cast<uint8_t>(sets.size() - 1);
    const ByteRange byte = {number, number};
    return builder.Byte({&byte, 1});
  };
  GrammarBuilder builder;
  ASSIGN_OR_RETURN(const GrammarBuilder::Part part,
                   AddRegex(pattern, builder, {.anchored = is_anchored, .character = number_set}));
  if (sets.size() > kMaxSets) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMaxSets, " different characters are not supported"));
  }
  ASSIGN_OR_RETURN(Grammar grammar, builder.Build(part));
  RETURN_IF_ERROR(work.Take(grammar.num_states() + grammar.num_edges() / 4));
  return TextPattern(std::move(grammar), std::move(sets));
}

absl::StatusOr<bool> TextPattern::Matches(std::string_view text, SchemaWork& work) const {
  std::set<int32_t> states = {grammar_.start()};
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    text.remove_prefix(unit.num_bytes);
    std::set<int32_t> next;
    int64_t num_ranges = 0;
    for (const int32_t state : states) {
      for (const Grammar::Edge& edge : grammar_.edges(state)) {
        const CharacterRanges& set = sets_[edge.bytes.first];
        num_ranges += std::ssize(set);
        const bool is_in = std::any_of(set.begin(), set.end(), [&](const CodePointRange& range) {
          return range.first <= unit.code_point && unit.code_point <= range.last;
        });
        if (is_in) next.insert(edge.target);
      }
    }
    states = std::move(next);
    RETURN_IF_ERROR(work.Take(num_ranges / 16));
  }
  return std::any_of(states.begin(), states.end(),
                     [&](int32_t state) { return grammar_.is_end(state); });
}

absl::StatusOr<GrammarBuilder::Part> TextPattern::OfLength(Length length, SchemaWork& work,
                                                           JsonText& text,
                                                           GrammarBuilder& builder) const {
  const int64_t most_counted = length.max_characters.value_or(length.min_characters);
  std::map<CountedPlace, GrammarBuilder::Rule> rules;
  std::vector<CountedPlace> pending;
  const auto call = [&](CountedPlace place) {
    const auto [found, is_new] = rules.try_emplace(place);
    if (is_new) {
      found->second = builder.Declare();
      pending.push_back(place);
    }
    return builder.Call(found->second);
  };
  const GrammarBuilder::Part whole = call({grammar_.start(), 0});
  while (!pending.empty()) {
    if (rules.size() > kMaxCountedPlaces || builder.is_full()) {
      return absl::InvalidArgumentError("it is too large to be counted in characters");
    }
    RETURN_IF_ERROR(work.Take(1));
    const CountedPlace place = pending.back();
    const auto [state, num_characters] = place;
    pending.pop_back();
    std::vector<GrammarBuilder::Part> choices;
    if (grammar_.is_end(state) && num_characters >= length.min_characters) {
      choices.push_back(builder.Empty());
    }
    const bool is_full = num_characters == length.max_characters;
    for (const Grammar::Edge& edge : grammar_.edges(state)) {
      if (is_full) break;
      const int64_t num_next = std::min(num_characters + 1, most_counted);
      // The call is last, so that it does not nest.
      choices.push_back(builder.Sequence(
          {text.Character(sets_[edge.bytes.first]), call({edge.target, num_next})}));
    }
    builder.Define(rules.at(place), builder.Choice(std::move(choices)));
  }
  return whole;
}

}  // namespace lockstep::grammar
