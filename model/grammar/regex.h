// Regular expressions as a grammar of the texts that they match.
//
// What ECMA 262 and Python's re both read the same: literals, classes, groups, alternatives,
// repeats. Over characters of UTF-8, which are code points; \d, \w and \s are ASCII's, and . is
// all but \n, as in Python; $ is where the text ends, as in ECMA. Nothing is captured, and whether
// a repeat is lazy changes no text. ^ and $ may be at the edges of the whole expression only, and
// of groups there. Refused: what they read differently, backreferences, look-around, \b, flags,
// possessive repeats and Unicode properties.
//
// Pure functions, any thread. Time and stack are bounded whatever the pattern is.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/grammar/grammar.h"

namespace lockstep::grammar {

struct RegexOptions {
  // false: the match may be anywhere in the text, but for ^ and $.
  bool anchored = true;
  // How one character of these is written; they are in order, apart, not none and no surrogates.
  // Unset: as GrammarBuilder::Character does. Asked once for equal ones.
  std::function<GrammarBuilder::Part(GrammarBuilder&, std::span<const CodePointRange>)> character =
      nullptr;
};

// Text that matches the pattern, which is from end to end if it is anchored. INVALID_ARGUMENT names
// the byte of the pattern at which something is malformed or not supported.
absl::StatusOr<GrammarBuilder::Part> AddRegex(std::string_view pattern, GrammarBuilder& builder,
                                              const RegexOptions& options = {});

}  // namespace lockstep::grammar
