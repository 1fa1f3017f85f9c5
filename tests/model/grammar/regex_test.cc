#include "model/grammar/regex.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kLongRegexBytes = 64 << 10;

absl::StatusOr<Grammar> BuildRegex(std::string_view pattern, const RegexOptions& options = {}) {
  GrammarBuilder builder;
  const auto part = AddRegex(pattern, builder, options);
  if (!part.ok()) return part.status();
  return builder.Build(*part);
}

// Whether the text matches from end to end.
bool RegexHas(std::string_view pattern, std::string_view text) {
  const auto grammar = BuildRegex(pattern);
  EXPECT_TRUE(grammar.ok()) << pattern << ": " << grammar.status();
  return grammar.ok() && Matches(*grammar, text);
}

bool RegexIsIn(std::string_view pattern, std::string_view text) {
  const auto grammar = BuildRegex(pattern, {.anchored = false});
  EXPECT_TRUE(grammar.ok()) << pattern << ": " << grammar.status();
  return grammar.ok() && Matches(*grammar, text);
}

std::string RegexRefusal(std::string_view pattern) {
  GrammarBuilder builder;
  const auto part = AddRegex(pattern, builder);
  if (part.ok()) return "none";
  EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(part.status().message());
}

std::string RepeatedPattern(std::string_view text, size_t num_bytes) {
  std::string all;
  while (all.size() + text.size() <= num_bytes) all += text;
  return all;
}

TEST(RegexTest, TextsMatchFromEndToEnd) {
  EXPECT_TRUE(RegexHas("", ""));
  EXPECT_FALSE(RegexHas("", "a"));
  EXPECT_TRUE(RegexHas("ab|c", "ab"));
  EXPECT_TRUE(RegexHas("ab|c", "c"));
  EXPECT_FALSE(RegexHas("ab|c", "ac"));
  EXPECT_FALSE(RegexHas("b", "abc"));
  EXPECT_TRUE(RegexHas("a||b", ""));
  EXPECT_TRUE(RegexHas("()(?:a)(?P<x_1>b)(?<y>c)", "abc"));
}

TEST(RegexTest, RepeatsCountTheirTexts) {
  for (int n = 0; n < 8; ++n) {
    const std::string text(static_cast<size_t>(n), 'a');
    EXPECT_TRUE(RegexHas("a*", text));
    EXPECT_EQ(RegexHas("a+", text), n >= 1);
    EXPECT_EQ(RegexHas("a?", text), n <= 1);
    EXPECT_EQ(RegexHas("a{3}", text), n == 3);
    EXPECT_EQ(RegexHas("a{03,}", text), n >= 3);
    EXPECT_EQ(RegexHas("a{2,4}", text), n >= 2 && n <= 4);
    EXPECT_EQ(RegexHas("(a{2}){2,3}", text), n == 4 || n == 6);
    EXPECT_EQ(RegexHas("(?:a*)*", text), true);
    EXPECT_EQ(RegexHas("b{0}a{0,0}", text), n == 0);
  }
}

TEST(RegexTest, LazyRepeatsMatchTheSameTexts) {
  for (const char* text : {"", "a", "aa", "aaa", "aaaa", "ab", "aab", "b"}) {
    EXPECT_EQ(RegexHas("a*?", text), RegexHas("a*", text)) << text;
    EXPECT_EQ(RegexHas("a+?b??", text), RegexHas("a+b?", text)) << text;
    EXPECT_EQ(RegexHas("a{1,3}?b{0,}?", text), RegexHas("a{1,3}b{0,}", text)) << text;
  }
}

TEST(RegexTest, CharactersAreCodePoints) {
  for (const char* character : {"a", "\r", "é", "€", "\u2028", "😀", "\U0010FFFF"}) {
    EXPECT_TRUE(RegexHas(".", character)) << character;
    EXPECT_TRUE(RegexHas("[^x]", character)) << character;
    EXPECT_TRUE(RegexHas(character, character)) << character;
    EXPECT_TRUE(RegexHas(absl::StrCat("[", character, "-", character, "]{2}"),
                         absl::StrCat(character, character)));
  }
  EXPECT_FALSE(RegexHas(".", "\n"));
  EXPECT_TRUE(RegexHas("[^x]", "\n"));
  EXPECT_FALSE(RegexHas("..", "é"));
  EXPECT_FALSE(RegexHas(".", "\xED\xA0\x80"));  // a surrogate
  EXPECT_TRUE(RegexHas("[à-ü]+", "éàü"));
  EXPECT_FALSE(RegexHas("[à-ü]", "\u00DF"));
  EXPECT_TRUE(RegexHas("é*", "éé"));
}

TEST(RegexTest, EscapesNameCharacters) {
  EXPECT_TRUE(RegexHas(R"(\n\t\r\f\v)", "\n\t\r\f\v"));
  EXPECT_TRUE(RegexHas(R"(\0[\0])", std::string_view("\0\0", 2)));
  EXPECT_TRUE(RegexHas(R"(\x41\xe9)", "Aé"));
  EXPECT_TRUE(RegexHas(R"(\u0041\u20AC\u{1F600}\u{41})", "A€😀A"));
  EXPECT_TRUE(RegexHas(R"(\ud83d\uDE00[\uD83D\ude00-\u{1F602}])", "😀😁"));
  EXPECT_TRUE(RegexHas(R"(\.\*\[\]\(\)\{\}\\\/\-\_\ \"\é)", R"(.*[](){}\/-_ "é)"));
  EXPECT_TRUE(RegexHas(R"([\b\]\-\\\n])", "\b"));
  EXPECT_TRUE(RegexHas(R"([\b\]\-\\\n]+)", "]-\\\n"));
}

TEST(RegexTest, NamedSetsAreOfAscii) {
  for (int byte = 0; byte < 128; ++byte) {
    const char c = static_cast<char>(byte);
    if (byte >= 0x1C && byte < 0x20) continue;  // Python's spaces
    const std::string text(1, c);
    const bool is_space = std::string_view(" \t\n\v\f\r").find(c) != std::string_view::npos;
    const bool is_digit = c >= '0' && c <= '9';
    const bool is_word = is_digit || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    for (const auto& [name, is_in] :
         {std::pair('d', is_digit), std::pair('w', is_word), std::pair('s', is_space)}) {
      const std::string set = {'\\', name};
      const std::string others = {'\\', static_cast<char>(name - 'a' + 'A')};
      ASSERT_EQ(RegexHas(set, text), is_in) << set << byte;
      ASSERT_EQ(RegexHas(absl::StrCat("[", set, "]"), text), is_in) << set << byte;
      ASSERT_EQ(RegexHas(others, text), !is_in) << others << byte;
      ASSERT_EQ(RegexHas(absl::StrCat("[^", others, "]"), text), is_in) << others << byte;
    }
  }
}

// What is in a set for ECMAScript, Python or PCRE is not in its opposite.
TEST(RegexTest, NegatedSetsAreEverybodys) {
  for (const char* space :
       {"\x1C", "\u0085", "\u00A0", "\u1680", "\u2003", "\u2028", "\u202F", "\u3000", "\uFEFF"}) {
    for (const char* set : {R"(\S)", R"([\S])", R"([^\s])", R"(\s)"}) {
      EXPECT_FALSE(RegexHas(set, space)) << set << space;
    }
    EXPECT_TRUE(RegexHas(R"(\D)", space));
  }
  for (const char* digit : {"\u0661", "\u096F", "\uFF10", "\U0001D7FF"}) {
    for (const char* set : {R"(\D)", R"([^\d])", R"([^\d.])", R"(\d)", R"(\W)"}) {
      EXPECT_FALSE(RegexHas(set, digit)) << set << digit;
    }
    EXPECT_TRUE(RegexHas(R"(\S)", digit));
  }
  for (const char* letter : {"é", "ß", "Ω", "я", "語", "\u00AA", "\u00B2", "\u2160"}) {
    for (const char* set : {R"(\W)", R"([^\w])", R"(\w)"}) {
      EXPECT_FALSE(RegexHas(set, letter)) << set << letter;
    }
    EXPECT_TRUE(RegexHas(R"(\D)", letter));
    EXPECT_TRUE(RegexHas(R"([^\s])", letter));
  }
  for (const char* sign : {"€", "«", "—", "→", "。", "😀", "\u00D7"}) {
    EXPECT_TRUE(RegexHas(R"(\W)", sign)) << sign;
    EXPECT_TRUE(RegexHas(R"([^\w\s])", sign)) << sign;
  }
}

TEST(RegexTest, HyphensAreThemselvesAtTheEdgesOfAClass) {
  for (const char* pattern : {"[-a]", "[a-]", "[\\d-]", "[+--]", "[a-c-]", "[,-.-]"}) {
    EXPECT_TRUE(RegexHas(pattern, "-")) << pattern;
  }
  EXPECT_FALSE(RegexHas("[a-c]", "-"));
  EXPECT_FALSE(RegexHas("[^-a]", "-"));
  EXPECT_TRUE(RegexHas("[a^]", "^"));
  EXPECT_TRUE(RegexHas("[.*+?(){}|$[]{12}", ".*+?(){}|$[["));
}

TEST(RegexTest, BracesThatCountNothingAreThemselves) {
  EXPECT_TRUE(RegexHas("{", "{"));
  EXPECT_TRUE(RegexHas("}]", "}]"));
  EXPECT_TRUE(RegexHas("{}", "{}"));
  EXPECT_TRUE(RegexHas("a{b}", "a{b}"));
  EXPECT_TRUE(RegexHas("a{1", "a{1"));
  EXPECT_TRUE(RegexHas("a{1,b", "a{1,b"));
  EXPECT_TRUE(RegexHas("a{1,2x}", "a{1,2x}"));
  EXPECT_TRUE(RegexHas("a{,x}", "a{,x}"));
  EXPECT_TRUE(RegexHas("{{2}", "{{"));
}

TEST(RegexTest, AnEmptySetMatchesNothing) {
  EXPECT_TRUE(RegexHas(R"(a|[^\s\S])", "a"));
  EXPECT_FALSE(RegexHas(R"(a|b[^\s\S])", "b"));
  EXPECT_FALSE(BuildRegex(R"([^\s\S])").ok());
}

TEST(RegexTest, AnchorsChangeNothingFromEndToEnd) {
  for (const char* pattern : {"^ab$", "^ab", "ab$", "(^ab)$", "^(?:ab$)", "((^)ab)", "x|^ab$",
                              "(^|x)ab(x|$)", "^(ab|$)"}) {
    EXPECT_TRUE(RegexHas(pattern, "ab")) << pattern;
    EXPECT_FALSE(RegexHas(pattern, "xaby")) << pattern;
  }
  EXPECT_TRUE(RegexHas("^$", ""));
  EXPECT_FALSE(RegexHas("^|$", "a"));
}

TEST(RegexTest, UnanchoredMatchesMayBeAnywhere) {
  EXPECT_TRUE(RegexIsIn("", "any\nthing😀"));
  for (const char* text : {"b", "ab", "bc", "abc", "\n\nb\n", "😀b😀"}) {
    EXPECT_TRUE(RegexIsIn("b", text)) << text;
  }
  EXPECT_FALSE(RegexIsIn("b", "a"));
  EXPECT_FALSE(RegexIsIn("bb", "bab"));
  EXPECT_FALSE(RegexIsIn("b", "b\xFF"));
}

TEST(RegexTest, AnchorsTieTheirAlternativeOnly) {
  EXPECT_TRUE(RegexIsIn("^a", "ab"));
  EXPECT_FALSE(RegexIsIn("^a", "ba"));
  EXPECT_TRUE(RegexIsIn("a$", "ba"));
  EXPECT_FALSE(RegexIsIn("a$", "ab"));
  EXPECT_FALSE(RegexIsIn("a$", "a\n"));
  EXPECT_FALSE(RegexIsIn("^a$", "ab"));
  for (const char* text : {"ax", "xc", "xbx"}) EXPECT_TRUE(RegexIsIn("^a|b|c$", text)) << text;
  for (const char* text : {"xax", "cx", ""}) EXPECT_FALSE(RegexIsIn("^a|b|c$", text)) << text;
  for (const char* text : {"a", "a,x", "x,a", "x,a,x"}) {
    EXPECT_TRUE(RegexIsIn("(^|,)a(,|$)", text)) << text;
  }
  for (const char* text : {"xa", "ax", "x,ax", ",xa,"}) {
    EXPECT_FALSE(RegexIsIn("(^|,)a(,|$)", text)) << text;
  }
  EXPECT_TRUE(RegexIsIn("(^a$)|(^b$)", "b"));
  EXPECT_FALSE(RegexIsIn("(^a$)|(^b$)", "ab"));
}

TEST(RegexTest, TheCallerSaysHowACharacterIsWritten) {
  std::vector<std::vector<CodePointRange>> asked;
  const RegexOptions options = {
      .character = [&asked](GrammarBuilder& builder, std::span<const CodePointRange> ranges) {
        asked.emplace_back(ranges.begin(), ranges.end());
        return builder.Sequence({builder.Text("<"), builder.Character(ranges), builder.Text(">")});
      }};
  const auto grammar = BuildRegex(R"((a|[c-db-c\uD7FF-\u{E000}a])\x61+[^\s\S]?)", options);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(Matches(*grammar, "<d><a><a>"));
  EXPECT_FALSE(Matches(*grammar, "da"));
  EXPECT_THAT(asked,
              ElementsAre(ElementsAre(CodePointRange{'a', 'a'}),
                          ElementsAre(CodePointRange{'a', 'd'}, CodePointRange{0xD7FF, 0xD7FF},
                                      CodePointRange{0xE000, 0xE000})));
}

TEST(RegexTest, RefusalsNameTheByteAndTheReason) {
  const std::pair<const char*, const char*> kRefusals[] = {
      {"abc(de(?=x))", "at byte 6: look-ahead (?=...) is not supported"},
      {"é(?!x)", "at byte 2: look-ahead (?!...) is not supported"},
      {"(?<=x)", "at byte 0: look-behind (?<=...)"},
      {"(?<!x)", "at byte 0: look-behind (?<!...)"},
      {"(?i)a", "at byte 0: flags like (?i)"},
      {"a(?-i:b)", "at byte 1: flags like (?i)"},
      {"(?>a)", "at byte 0: an atomic group"},
      {"(?#a)", "at byte 0: a comment"},
      {"(a)(?P=a)", "at byte 3: a backreference"},
      {"(a)(?(1)b)", "at byte 3: a condition"},
      {"(?", "at byte 0: flags"},
      {"(?<1a>b)", "at byte 3: a group's name"},
      {"(?P<a", "at byte 4: a group's name"},
      {R"((a)\1)", R"(at byte 3: a backreference "\\1" is not supported)"},
      {R"(\k<a>)", R"(at byte 0: a backreference "\\k" is not supported)"},
      {R"(a\b)", R"(at byte 1: a word boundary "\\b" is not supported)"},
      {R"(\B)", R"(at byte 0: a word boundary "\\B" is not supported)"},
      {R"([\B])", R"(at byte 1: a word boundary "\\B" is not supported)"},
      {R"(\p{L})", R"(at byte 0: a Unicode property "\\p" is not supported)"},
      {R"(\Z)", R"(at byte 0: the escape "\\Z" is not supported)"},
      {R"(\01)", R"(at byte 0: an octal number "\\0" is not supported)"},
      {R"([\1])", R"(at byte 1: an octal number "\\1" is not supported)"},
      {R"(a\)", "at byte 1: a backslash has nothing behind it"},
      {R"([a\)", "at byte 2: a backslash has nothing behind it"},
      {R"(\x4)", "at byte 0: \\x is not followed by two"},
      {R"(\u00g0)", "at byte 0: \\u is not followed by four"},
      {R"(\u{110000})", "at byte 0: \\u is not followed by four"},
      {R"(\u{})", "at byte 0: \\u is not followed by four"},
      {R"(\u{41)", "at byte 0: \\u is not followed by four"},
      {R"(a\uD83D)", "at byte 1: half of a surrogate pair"},
      {R"(\uDE00\uD83D)", "at byte 0: half of a surrogate pair"},
      {R"(\uD83D\u0041)", "at byte 0: half of a surrogate pair"},
      {R"(\u{D83D})", "at byte 0: half of a surrogate pair"},
      {"a++", "at byte 1: a repeat that gives nothing back (possessive)"},
      {"a{1,2}+", "at byte 1: a repeat that gives nothing back (possessive)"},
      {"*", R"(at byte 0: "*" has nothing to repeat)"},
      {"(+a)", R"(at byte 1: "+" has nothing to repeat)"},
      {"a|{2,3}", R"(at byte 2: "{2,3}" has nothing to repeat)"},
      {"a*{2}", R"(at byte 2: "{2}" has nothing to repeat)"},
      {"a???", R"(at byte 3: "?" has nothing to repeat)"},
      {"a{2,1}", "at byte 1: the counts of a repeat are out of order"},
      {"a{,2}", "at byte 1: a repeat without its lower count"},
      {"a{,}", "at byte 1: a repeat without its lower count"},
      {"a{65537}", "at byte 1: more than 65536 repeats"},
      {"a{0,99999999999999999999999}", "at byte 1: more than 65536 repeats"},
      {"a^b", "at byte 1: ^ is supported only where the text begins"},
      {"a(b|(^c))", "at byte 5: ^ is supported only where the text begins"},
      {"^^", "at byte 1: ^ is supported only where the text begins"},
      {"$a", "at byte 0: $ is supported only where the text ends"},
      {"((a|b$)c)", "at byte 5: $ is supported only where the text ends"},
      {"$^", "at byte 1: ^ is supported only where the text begins"},
      {"^*", "at byte 1: ^ and $ cannot be repeated"},
      {"(a|b$)?", "at byte 6: ^ and $ cannot be repeated"},
      {"a(b", "at byte 1: a ( has no ) behind it"},
      {"a)b", "at byte 1: a ) has no ( before it"},
      {"a[b", "at byte 1: a class has no end"},
      {"[a-", "at byte 0: a class has no end"},
      {"[^", "at byte 0: a class has no end"},
      {"[]a]", "at byte 0: a class that begins with ]"},
      {"[^]", "at byte 0: a class that begins with ]"},
      {"[[:alpha:]]", "at byte 1: a POSIX class is not supported"},
      {"x[b-a]", R"(at byte 2: the range "b-a" is out of order)"},
      {R"([a-\d])", R"(at byte 1: the range "a-\\d" has an end that is not one character)"},
      {R"([\w-z])", R"(at byte 1: the range "\\w-z" has an end that is not one character)"},
      {"ab\xFFz", "at byte 2: the expression is not UTF-8"},
      {"\xED\xA0\x80", "at byte 0: the expression is not UTF-8"},
  };
  for (const auto& [pattern, refusal] : kRefusals) {
    EXPECT_THAT(RegexRefusal(pattern), StartsWith(refusal)) << pattern;
  }
}

TEST(RegexTest, GroupsNestSoDeepAndNoDeeper) {
  const auto nested = [](size_t depth) {
    return absl::StrCat(std::string(depth, '('), "a", std::string(depth, ')'));
  };
  EXPECT_TRUE(RegexHas(nested(100), "a"));
  EXPECT_EQ(RegexRefusal(nested(101)), "at byte 100: groups nest deeper than 100");
  EXPECT_EQ(RegexRefusal(nested(30000)), "at byte 100: groups nest deeper than 100");
  EXPECT_TRUE(RegexHas(RepeatedPattern("(a)", 600), std::string(200, 'a')));
}

TEST(RegexTest, LargeCountsAreRefusedWhenTheyAreBuilt) {
  for (const char* pattern :
       {"a{65536}b", "(?:a{300}){300}", "(?:(?:(?:){65536}){65536}){65536}", "((a?){999}){999}",
        "(?:(?:[a-z]{0,65536}){0,65536}){0,65536}", "(((a{0}){65536}){65536}){65536}"}) {
    const auto grammar = BuildRegex(pattern);
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(grammar.status().message()), HasSubstr("too large")) << pattern;
  }
  EXPECT_TRUE(RegexHas("(?:a{65536}){0}", ""));
  EXPECT_TRUE(RegexHas("a{500}", std::string(500, 'a')));
}

// Whatever comes of them: neither their length nor their depth makes them slow or crash.
TEST(RegexTest, LongPatternsAreReadInTimeThatGrowsWithThem) {
  for (const char* piece : {"(",   ")",    "[",    "(a",    "()", "(?:", "(?P<a>", "{",      "{1",
                            "{1,", "a{1}", "a|",   "^|",    "|$", ".",   "\\W",    "[\\W]",  "[^a]",
                            "[\\", "\\u",  "\\u{", "\\u{0", "a?", "a*",  "(a*)*",  "(^|$)|", "é",
                            "😀",   "1",    "^",    "$",     "-",  "[a-", "\\uD800"}) {
    for (const bool anchored : {true, false}) {
      BuildRegex(RepeatedPattern(piece, kLongRegexBytes), {.anchored = anchored})
          .status()
          .IgnoreError();
    }
  }
  for (const char* start : {"[", "[^", "{1,", "a{", "\\u{", "(?<a", "(?P<"}) {
    for (const char* piece : {"1", "a", "\\W", "a-", "-", "0", "[", "\\uD83D\\uDE00"}) {
      const std::string pattern = absl::StrCat(start, RepeatedPattern(piece, kLongRegexBytes));
      BuildRegex(pattern).status().IgnoreError();
      BuildRegex(absl::StrCat(pattern, "]")).status().IgnoreError();
    }
  }
  // Many ways on from states that share them.
  for (const char* piece : {".a?|", ".a|", "a?|", "[a-y]b?c?|"}) {
    std::string pattern =
        absl::StrCat("b?c?d?e?f?g?(?:", RepeatedPattern(piece, kLongRegexBytes - 32));
    pattern.erase(pattern.rfind('|'));
    BuildRegex(absl::StrCat(pattern, ")")).status().IgnoreError();
  }
}

}  // namespace
}  // namespace lockstep::grammar
