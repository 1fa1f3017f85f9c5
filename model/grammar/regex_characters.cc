#include "model/grammar/regex_characters.h"

#include <algorithm>
#include <iterator>
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

// The zeros of Unicode's decimal digits (UnicodeData.txt, Nd), each with nine others behind it.
constexpr char32_t kRegexZeros[] = {
    '0',     0x660,   0x6F0,   0x7C0,   0x966,   0x9E6,   0xA66,   0xAE6,   0xB66,   0xBE6,
    0xC66,   0xCE6,   0xD66,   0xDE6,   0xE50,   0xED0,   0xF20,   0x1040,  0x1090,  0x17E0,
    0x1810,  0x1946,  0x19D0,  0x1A80,  0x1A90,  0x1B50,  0x1BB0,  0x1C40,  0x1C50,  0xA620,
    0xA8D0,  0xA900,  0xA9D0,  0xA9F0,  0xAA50,  0xABF0,  0xFF10,  0x104A0, 0x10D30, 0x10D40,
    0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x116D0,
    0x116DA, 0x11730, 0x118E0, 0x11950, 0x11BF0, 0x11C50, 0x11D50, 0x11DA0, 0x11F50, 0x16A60,
    0x16AC0, 0x16B50, 0x16D70, 0x1CCF0, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140,
    0x1E2F0, 0x1E4F0, 0x1E5F1, 0x1E950, 0x1FBF0};
// Signs, spaces and pictures beyond ASCII that nobody takes for a letter, a number or a mark. (Of
// those there are hundreds of ranges more.)
constexpr CodePointRange kRegexSigns[] = {
    {0x80, 0xA9},       {0xAB, 0xB1},      {0xB4, 0xB4},     {0xB6, 0xB8},     {0xBB, 0xBB},
    {0xBF, 0xBF},       {0xD7, 0xD7},      {0xF7, 0xF7},     {0x2000, 0x200A}, {0x2010, 0x2029},
    {0x2030, 0x203E},   {0x20A0, 0x20BF},  {0x2190, 0x2426}, {0x2500, 0x2775}, {0x2794, 0x2B73},
    {0x3000, 0x3003},   {0x3008, 0x3020},  {0xFF01, 0xFF0F}, {0xFF1A, 0xFF20}, {0xFF5B, 0xFF65},
    {0x1F300, 0x1F6D7}, {0x1F900, 0x1FA53}};

CharacterSet RegexDigits(RegexReading reading) {
  if (reading == RegexReading::kOfAll) return {{'0', '9'}};
  std::vector<CodePointRange> digits;
  for (const char32_t zero : kRegexZeros) digits.push_back({zero, zero + 9});
  return MakeCharacterSet(std::move(digits));
}

CharacterSet RegexWordCharacters(RegexReading reading) {
  const CharacterSet ascii = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  if (reading == RegexReading::kOfAll) return ascii;
  std::vector<CodePointRange> others = {{0, 0x7F}};
  others.insert(others.end(), std::begin(kRegexSigns), std::end(kRegexSigns));
  std::vector<CodePointRange> word = AllCharactersBut(MakeCharacterSet(std::move(others)));
  word.insert(word.end(), ascii.begin(), ascii.end());
  return MakeCharacterSet(std::move(word));
}

// ECMAScript's WhiteSpace and LineTerminator, Python's str.isspace, and what old Unicode had.
CharacterSet RegexSpaces(RegexReading reading) {
  if (reading == RegexReading::kOfAll) return {{'\t', '\r'}, {' ', ' '}};
  return MakeCharacterSet({{'\t', '\r'},
                           {0x1C, ' '},
                           {0x85, 0x85},
                           {0xA0, 0xA0},
                           {0x1680, 0x1680},
                           {0x180E, 0x180E},
                           {0x2000, 0x200A},
                           {0x2028, 0x2029},
                           {0x202F, 0x202F},
                           {0x205F, 0x205F},
                           {0x3000, 0x3000},
                           {0xFEFF, 0xFEFF}});
}

// nullopt: it names no set. 'd' of \d.
std::optional<CharacterSet> NamedRegexSet(char32_t name, RegexReading reading) {
  const RegexReading other =
      reading == RegexReading::kOfAll ? RegexReading::kOfAny : RegexReading::kOfAll;
  switch (name) {
    case 'd':
      return RegexDigits(reading);
    case 'w':
      return RegexWordCharacters(reading);
    case 's':
      return RegexSpaces(reading);
    case 'D':
      return AllCharactersBut(RegexDigits(other));
    case 'W':
      return AllCharactersBut(RegexWordCharacters(other));
    case 'S':
      return AllCharactersBut(RegexSpaces(other));
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
absl::StatusOr<CharacterSet> ParseRegexMember(RegexCursor& cursor, RegexReading reading) {
  if (cursor.Sees("\\")) return ParseRegexEscape(cursor, /*is_in_class=*/true, reading);
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
absl::StatusOr<CharacterSet> ParseRegexMembers(RegexCursor& cursor, RegexReading reading) {
  const size_t at = cursor.at();
  ASSIGN_OR_RETURN(CharacterSet first, ParseRegexMember(cursor, reading));
  if (!cursor.Sees("-") || cursor.Sees("-]") || cursor.rest().size() == 1) return first;
  cursor.Take();
  ASSIGN_OR_RETURN(const CharacterSet last, ParseRegexMember(cursor, reading));
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

absl::StatusOr<CharacterSet> ParseRegexEscape(RegexCursor& cursor, bool is_in_class,
                                              RegexReading reading) {
  const size_t at = cursor.at();
  cursor.Take();
  if (cursor.is_end()) return RegexError(at, "a backslash has nothing behind it");
  char32_t c = cursor.Take();
  if (std::optional<CharacterSet> set = NamedRegexSet(c, reading)) return *std::move(set);
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
    ASSIGN_OR_RETURN(
        const CharacterSet members,
        ParseRegexMembers(cursor, is_negated ? RegexReading::kOfAny : RegexReading::kOfAll));
    ranges.insert(ranges.end(), members.begin(), members.end());
  }
  CharacterSet set = MakeCharacterSet(std::move(ranges));
  return is_negated ? AllCharactersBut(set) : set;
}

}  // namespace lockstep::grammar
