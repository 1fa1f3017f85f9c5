#include "model/grammar/thought.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::grammar {
namespace {

using Part = GrammarBuilder::Part;

constexpr int kMostBreaksAfter = 4;
// Of which the rest of a text is in UTF-8; other control characters have no token in many
// vocabularies.
constexpr CodePointRange kControls[] = {{'\t', '\n'}, {'\r', '\r'}};

// A character other than these two, which may be equal.
Part CharacterBut(char32_t one, char32_t other, GrammarBuilder& builder) {
  std::vector<CodePointRange> ranges(std::begin(kControls), std::end(kControls));
  char32_t first = ' ';
  for (const char32_t but : {std::min(one, other), std::max(one, other)}) {
    if (but > first) ranges.push_back({first, but - 1});
    first = but + 1;
  }
  ranges.push_back({first, 0x10FFFF});
  return builder.Character(ranges);
}

// A text that ends with the marker and has it nowhere else: characters, and beginnings of the
// marker that another character follows than its next. The marker's first character is nowhere else
// in it, so a beginning that fails with that one is followed by another beginning.
Part UpToFirst(std::string_view marker, GrammarBuilder& builder) {
  const auto first = static_cast<unsigned char>(marker[0]);
  std::vector<Part> begun;
  std::vector<Part> failed;
  for (size_t size = 1; size < marker.size(); ++size) {
    const Part beginning = builder.Text(marker.substr(0, size));
    const auto next = static_cast<unsigned char>(marker[size]);
    begun.push_back(beginning);
    failed.push_back(builder.Sequence({beginning, CharacterBut(first, next, builder)}));
  }
  const Part beginnings = builder.Repeat(builder.Choice(std::move(begun)), 0, std::nullopt);
  const Part other =
      builder.Choice({CharacterBut(first, first, builder),
                      builder.Sequence({beginnings, builder.Choice(std::move(failed))})});
  return builder.Sequence(
      {builder.Repeat(other, 0, std::nullopt), beginnings, builder.Text(marker)});
}

}  // namespace

Part AddThought(bool has_begun, GrammarBuilder& builder) {
  const Part rest = builder.Sequence(
      {UpToFirst(kThoughtEnd, builder), builder.Repeat(builder.Text("\n"), 0, kMostBreaksAfter)});
  if (has_begun) return rest;
  return builder.Optional(builder.Sequence({builder.Text(kThoughtBegin), rest}));
}

}  // namespace lockstep::grammar
