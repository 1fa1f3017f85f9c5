#include "model/grammar/free_text.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::grammar {
namespace {

using Part = GrammarBuilder::Part;

constexpr CodePointRange kCharacters[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', 0x10FFFF}};

char32_t CodePoint(char ascii) { return static_cast<unsigned char>(ascii); }

// Beginnings of the marker, one after the other.
Part Beginnings(std::string_view marker, GrammarBuilder& builder) {
  std::vector<Part> begun;
  for (size_t size = 1; size < marker.size(); ++size) {
    begun.push_back(builder.Text(marker.substr(0, size)));
  }
  return builder.Repeat(builder.Choice(std::move(begun)), 0, std::nullopt);
}

// Characters, and beginnings of the marker that another character follows than its next. The
// marker's first character is nowhere else in it, so a beginning that fails with that one is
// followed by another beginning.
Part Failures(std::string_view marker, Part beginnings, GrammarBuilder& builder) {
  std::vector<Part> failed;
  for (size_t size = 1; size < marker.size(); ++size) {
    const std::u32string ends_it = {CodePoint(marker[0]), CodePoint(marker[size])};
    failed.push_back(
        builder.Sequence({builder.Text(marker.substr(0, size)), CharacterBut(ends_it, builder)}));
  }
  const std::u32string begins_it(1, CodePoint(marker[0]));
  return builder.Repeat(
      builder.Choice({CharacterBut(begins_it, builder),
                      builder.Sequence({beginnings, builder.Choice(std::move(failed))})}),
      0, std::nullopt);
}

}  // namespace

Part FreeText(GrammarBuilder& builder) {
  return builder.Repeat(builder.Character(kCharacters), 0, std::nullopt);
}

Part CharacterBut(std::u32string_view characters, GrammarBuilder& builder, char32_t last) {
  std::u32string sorted(characters);
  std::sort(sorted.begin(), sorted.end());
  std::vector<CodePointRange> ranges;
  for (const CodePointRange& range : kCharacters) {
    char32_t first = range.first;
    const char32_t end = std::min(range.last, last);
    for (const char32_t but : sorted) {
      if (but < first || but > end) continue;
      if (but > first) ranges.push_back({first, but - 1});
      first = but + 1;
    }
    if (first <= end) ranges.push_back({first, end});
  }
  return builder.Character(ranges);
}

Part FreeTextUpTo(std::string_view marker, GrammarBuilder& builder) {
  const Part beginnings = Beginnings(marker, builder);
  return builder.Sequence(
      {Failures(marker, beginnings, builder), beginnings, builder.Text(marker)});
}

Part FreeTextWithout(std::string_view marker, GrammarBuilder& builder) {
  const Part beginnings = Beginnings(marker, builder);
  return builder.Sequence({Failures(marker, beginnings, builder), beginnings});
}

}  // namespace lockstep::grammar
