#include "model/grammar/regex_characters.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

constexpr char32_t kLastRegexCharacter = 0x10FFFF;
constexpr char32_t kFirstRegexSurrogate = 0xD800;
constexpr char32_t kFirstRegexLowSurrogate = 0xDC00;
constexpr char32_t kBehindRegexSurrogates = 0xE000;

bool IsRegexSurrogate(char32_t c) {
  return c >= kFirstRegexSurrogate && c < kBehindRegexSurrogates;
}
bool IsRegexLowSurrogate(char32_t c) { return IsRegexSurrogate(c) && c >= kFirstRegexLowSurrogate; }

// nullopt: it names no set. 'd' of \d.
std::optional<CharacterSet> NamedRegexSet(char32_t name) {
  switch (name) {
    case 'd':
      return CharacterSet{{'0', '9'}};
    case 'w':
      return CharacterSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    case 's':
      return CharacterSet{{'\t', '\r'}, {' ', ' '}};
    case 'D':
      return AllCharactersBut(*NamedRegexSet('d'));
    case 'W':
      return AllCharactersBut(*NamedRegexSet('w'));
    case 'S':
      return AllCharactersBut(*NamedRegexSet('s'));
    default:
      return std::nullopt;
  }
}

std::optional<char32_t> RegexControlCharacter(char32_t name) {
  static constexpr std::pair<char, char> kNames[] = {
      {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'f', '\f'}, {'v', '\v'}};
  for (const auto& [known, meaning] : kNames) {
    if (name == static_cast<char32_t>(known)) return static_cast<char32_t>(meaning);
  }
  return std::nullopt;
}

bool NextIsRegexDigit(const RegexCursor& cursor) {
  return !cursor.is_end() && absl::ascii_isdigit(static_cast<unsigned char>(cursor.rest()[0]));
}

// Exactly so many hexadecimal digits; nullopt, and nothing taken: it is something else.
std::optional<char32_t> TakeRegexHex(RegexCursor& cursor, size_t num_digits) {
  const std::string_view digits = cursor.rest().substr(0, num_digits);
  if (digits.size() < num_digits) return std::nullopt;
  char32_t value = 0;
  for (const char digit : digits) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return std::nullopt;
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(digit));
    value = value * 16 + static_cast<char32_t>(lower <= '9' ? lower - '0' : lower - 'a' + 10);
  }
  cursor.GoTo(cursor.at() + num_digits);
  return value;
}

// "1F600}" of \u{1F600}.
std::optional<char32_t> TakeRegexBracedHex(RegexCursor& cursor) {
  char32_t value = 0;
  size_t num_digits = 0;
  for (; !cursor.Skip("}"); ++num_digits) {
    const std::optional<char32_t> digit = TakeRegexHex(cursor, 1);
    if (!digit.has_value()) return std::nullopt;
    value = value * 16 + *digit;
    if (value > kLastRegexCharacter) return std::nullopt;
  }
  return num_digits > 0 ? std::optional(value) : std::nullopt;
}

// Behind "\x" or "\u", which is at `at`. Two surrogates, each with its \u, are one character.
absl::StatusOr<char32_t> TakeRegexHexEscape(RegexCursor& cursor, size_t at, char32_t kind) {
  const std::optional<char32_t> first = kind == 'x'        ? TakeRegexHex(cursor, 2)
                                        : cursor.Skip("{") ? TakeRegexBracedHex(cursor)
                                                           : TakeRegexHex(cursor, 4);
  if (!first.has_value()) {
    return RegexError(at, absl::StrCat("\\", kind == 'x' ? "x" : "u", " is not followed by ",
                                       kind == 'x' ? "two hexadecimal digits"
                                                   : "four hexadecimal digits, or by a character's "
                                                     "number in braces"));
  }
  if (!IsRegexSurrogate(*first)) return *first;
  if (!IsRegexLowSurrogate(*first) && cursor.Skip("\\u")) {
    const std::optional<char32_t> second = TakeRegexHex(cursor, 4);
    if (second.has_value() && IsRegexLowSurrogate(*second)) {
      return 0x10000 + ((*first - kFirstRegexSurrogate) << 10) +
             (*second - kFirstRegexLowSurrogate);
    }
  }
  return RegexError(at, "half of a surrogate pair is not a character");
}

absl::Status UnsupportedRegexEscape(const RegexCursor& cursor, size_t at, char32_t kind,
                                    bool is_in_class) {
  const bool may_refer = !is_in_class && ((kind >= '1' && kind <= '9') || kind == 'k');
  const char* what = may_refer                    ? "a backreference "
                     : kind == 'b' || kind == 'B' ? "a word boundary "
                     : kind == 'p' || kind == 'P' ? "a Unicode property "
                     : kind >= '0' && kind <= '9' ? "an octal number "
                                                  : "the escape ";
  return RegexError(at, absl::StrCat(what, Quoted(cursor.From(at)), " is not supported"));
}

// What a class names between its brackets: a character, a range, or the set of an escape.
absl::StatusOr<CharacterSet> ParseRegexMember(RegexCursor& cursor) {
  if (cursor.Sees("\\")) return ParseRegexEscape(cursor, /*is_in_class=*/true);
  for (const std::string_view opening : {"[:", "[.", "[="}) {
    if (cursor.Sees(opening)) {
      return RegexError(cursor.at(),
                        absl::StrCat("a POSIX class is not supported, and for characters write \\[",
                                     std::string(opening.substr(1))));
    }
  }
  const char32_t c = cursor.Take();
  return CharacterSet{{c, c}};
}

bool IsOneRegexCharacter(const CharacterSet& set) {
  return set.size() == 1 && set[0].first == set[0].last;
}

// A member, or all from one to the other where a - is between.
absl::StatusOr<CharacterSet> ParseRegexMembers(RegexCursor& cursor) {
  const size_t at = cursor.at();
  ASSIGN_OR_RETURN(CharacterSet first, ParseRegexMember(cursor));
  if (!cursor.Sees("-") || cursor.Sees("-]") || cursor.rest().size() == 1) return first;
  cursor.Take();
  ASSIGN_OR_RETURN(const CharacterSet last, ParseRegexMember(cursor));
  if (!IsOneRegexCharacter(first) || !IsOneRegexCharacter(last)) {
    return RegexError(at, absl::StrCat("the range ", Quoted(cursor.From(at)),
                                       " has an end that is not one character"));
  }
  if (first[0].first > last[0].first) {
    return RegexError(at, absl::StrCat("the range ", Quoted(cursor.From(at)), " is out of order"));
  }
  return CharacterSet{{first[0].first, last[0].first}};
}

}  // namespace

CharacterSet MakeCharacterSet(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  CharacterSet set;
  const auto add = [&](char32_t first, char32_t last) {
    if (first > last) return;
    if (!set.empty() && first <= set.back().last + 1) {
      set.back().last = std::max(set.back().last, last);
    } else {
      set.push_back({first, last});
    }
  };
  for (const CodePointRange& range : ranges) {
    add(range.first, std::min<char32_t>(range.last, kFirstRegexSurrogate - 1));
    add(std::max(range.first, kBehindRegexSurrogates), range.last);
  }
  return set;
}

CharacterSet AllCharactersBut(const CharacterSet& set) {
  std::vector<CodePointRange> others;
  char32_t next = 0;
  for (const CodePointRange& range : set) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastRegexCharacter) others.push_back({next, kLastRegexCharacter});
  return MakeCharacterSet(std::move(others));
}

bool RegexCursor::Skip(std::string_view text) {
  const bool is_there = Sees(text);
  if (is_there) at_ += text.size();
  return is_there;
}

char32_t RegexCursor::Take() {
  const Utf8Unit unit = NextUtf8Unit(rest());
  at_ += unit.num_bytes;
  return unit.code_point;
}

absl::Status RegexError(size_t at, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("at byte ", at, ": ", what));
}

absl::StatusOr<CharacterSet> ParseRegexEscape(RegexCursor& cursor, bool is_in_class) {
  const size_t at = cursor.at();
  cursor.Take();
  if (cursor.is_end()) return RegexError(at, "a backslash has nothing behind it");
  char32_t c = cursor.Take();
  if (std::optional<CharacterSet> set = NamedRegexSet(c); set.has_value()) return *std::move(set);
  if (const std::optional<char32_t> control = RegexControlCharacter(c); control.has_value()) {
    c = *control;
  } else if (c == '0' && !NextIsRegexDigit(cursor)) {
    c = 0;
  } else if (c == 'b' && is_in_class) {
    c = '\b';
  } else if (c == 'x' || c == 'u') {
    ASSIGN_OR_RETURN(c, TakeRegexHexEscape(cursor, at, c));
  } else if (c < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(c))) {
    return UnsupportedRegexEscape(cursor, at, c, is_in_class);
  }
  return CharacterSet{{c, c}};
}

absl::StatusOr<CharacterSet> ParseRegexClass(RegexCursor& cursor) {
  const size_t at = cursor.at();
  cursor.Take();
  const bool is_negated = cursor.Skip("^");
  if (cursor.Sees("]")) return RegexError(at, "a class that begins with ] is not supported: \\]");
  std::vector<CodePointRange> ranges;
  while (!cursor.Skip("]")) {
    if (cursor.is_end()) return RegexError(at, "a class has no end");
    ASSIGN_OR_RETURN(const CharacterSet members, ParseRegexMembers(cursor));
    ranges.insert(ranges.end(), members.begin(), members.end());
  }
  CharacterSet set = MakeCharacterSet(std::move(ranges));
  return is_negated ? AllCharactersBut(set) : set;
}

}  // namespace lockstep::grammar
