// The characters of a regular expression, and the sets of them that it names. See regex.h.
//
// Pure functions and a place in a pattern; any thread.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/grammar/grammar.h"

namespace lockstep::grammar {

// In order, apart (not even side by side) and without surrogates.
using CharacterSet = std::vector<CodePointRange>;

CharacterSet MakeCharacterSet(std::vector<CodePointRange> ranges);
CharacterSet AllCharactersBut(const CharacterSet& set);

// A place in a pattern, which is UTF-8 and outlives it.
class RegexCursor {
 public:
  explicit RegexCursor(std::string_view pattern) : pattern_(pattern) {}

  bool is_end() const { return at_ == pattern_.size(); }
  size_t at() const { return at_; }
  void GoTo(size_t at) { at_ = at; }
  std::string_view rest() const { return pattern_.substr(at_); }
  std::string_view From(size_t begin) const { return pattern_.substr(begin, at_ - begin); }

  bool Sees(std::string_view text) const { return rest().starts_with(text); }
  bool Skip(std::string_view text);
  char32_t Take();  // one character, not at the end

 private:
  std::string_view pattern_;
  size_t at_ = 0;
};

absl::Status RegexError(size_t at, absl::string_view what);

// \d, \w and \s are ASCII's for ECMAScript (\s but for some spaces) and Unicode's for Python and
// PCRE: the characters that all of them take, or that any does. What is negated leaves out the
// latter, so that its matches are everybody's.
enum class RegexReading { kOfAll, kOfAny };

// What begins with the backslash that the cursor is at. \b is a character within a class only.
absl::StatusOr<CharacterSet> ParseRegexEscape(RegexCursor& cursor, bool is_in_class,
                                              RegexReading reading = RegexReading::kOfAll);
// What begins with the [ that the cursor is at.
absl::StatusOr<CharacterSet> ParseRegexClass(RegexCursor& cursor);

}  // namespace lockstep::grammar
