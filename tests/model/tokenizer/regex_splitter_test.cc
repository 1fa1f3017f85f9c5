#include "model/tokenizer/regex_splitter.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Pieces(std::string_view pattern, std::string_view text) {
  const auto splitter = RegexSplitter::Compile(pattern);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  std::vector<std::string> pieces;
  const absl::Status status = splitter->Split(text, [&](std::string_view piece) {
    pieces.emplace_back(piece);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

bool Matches(std::string_view pattern, uint32_t code_point) {
  std::string text = "x";
  AppendCodePoint(code_point, text);
  return Pieces(pattern, text).size() == 2;
}

TEST(RegexSplitter, MatchesAndGapsArePieces) {
  EXPECT_THAT(Pieces("b+", ""), IsEmpty());
  EXPECT_THAT(Pieces("b+", "abbab"), ElementsAre("a", "bb", "a", "b"));
  EXPECT_THAT(Pieces("b+", "aa"), ElementsAre("aa"));
  EXPECT_THAT(Pieces("b", "bb"), ElementsAre("b", "b"));
}

TEST(RegexSplitter, EmptyMatchesOnlyCut) {
  EXPECT_THAT(Pieces("(?=b)", "abé"), ElementsAre("a", "bé"));
  EXPECT_THAT(Pieces("x*", "éé"), ElementsAre("é", "é"));
}

TEST(RegexSplitter, SpaceIsUnicodeWhiteSpace) {
  for (uint32_t c = 1; c < 0x3100; ++c) {
    if (c == 'x') continue;
    ASSERT_EQ(Matches(R"((?!x)\s)", c), IsWhiteSpace(c)) << std::hex << c;
    ASSERT_EQ(Matches(R"((?!x)[\s])", c), IsWhiteSpace(c)) << std::hex << c;
    ASSERT_EQ(Matches(R"((?!x)\S)", c), !IsWhiteSpace(c)) << std::hex << c;
    ASSERT_EQ(Matches(R"((?!x)[^\S])", c), IsWhiteSpace(c)) << std::hex << c;
  }
  for (const uint32_t c : {0x85, 0xA0, 0x2029, 0x3000}) EXPECT_TRUE(IsWhiteSpace(c));
  for (const uint32_t c : {0x180E, 0x200B, 0x2060, 0xFEFF}) EXPECT_FALSE(IsWhiteSpace(c));
}

TEST(RegexSplitter, CaseFoldingIsUnicode) {
  EXPECT_THAT(Pieces("(?i:'s)", "x'\u017F"), ElementsAre("x", "'\u017F"));
  EXPECT_THAT(Pieces("(?i:k)", "x\u212A"), ElementsAre("x", "\u212A"));
}

TEST(RegexSplitter, PatternsThatDialectsReadDifferentlyAreRefused) {
  for (const char* pattern :
       {R"(\w+)", R"(\bx)",  R"(\h)",    R"(\v)", R"(\K)",    R"(\R)",           R"(\C)",
        "[[a]b]", "[a&&b]",  "[]a]",     "[^]a]", "(?m)a",    "(?P<x>a)",        "(*UTF)a",
        "a{,3}",  "a{1,3}+", R"(\)",     "(",     "[a",       R"(\p{Nonsense})", R"(\p{L)",
        R"(\1)",  R"(\pL+)", R"([\PL])", "a{2}?", "x(?i)b|c", "(?:(?i)b|c)"}) {
    const auto splitter = RegexSplitter::Compile(pattern);
    EXPECT_EQ(splitter.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
  }
  for (const char* pattern : {"(?i)b|c", "a{1,3}?", "a{2,}?", R"(\p{N}{1,3})", "a{2}", "[{2}?]"}) {
    EXPECT_TRUE(RegexSplitter::Compile(pattern).ok()) << pattern;
  }
  EXPECT_THAT(std::string(RegexSplitter::Compile(R"(a|\w)").status().message()),
              HasSubstr("'\\\\w'"));
}

TEST(RegexSplitter, RunawayBacktrackingIsAnErrorNotALoss) {
  const auto splitter = RegexSplitter::Compile("(?:a+)+[bc]");
  ASSERT_TRUE(splitter.ok()) << splitter.status();
  const absl::Status status =
      splitter->Split(std::string(40, 'a'), [](std::string_view) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

// PCRE2's interpreter leaves an alternative behind at every character, of some 300 bytes.
TEST(RegexSplitter, WhatTakesMuchMemoryIsAnErrorToo) {
  const auto splitter = RegexSplitter::Compile("(?:a|b)*x|(?:a|b)+");
  ASSERT_TRUE(splitter.ok()) << splitter.status();
  const auto split = [&](size_t num_bytes) {
    return splitter->Split(std::string(num_bytes, 'a'),
                           [](std::string_view) { return absl::OkStatus(); });
  };
  EXPECT_TRUE(split(100'000).ok()) << split(100'000);
  EXPECT_EQ(split(2'000'000).code(), absl::StatusCode::kResourceExhausted) << split(2'000'000);
}

TEST(RegexSplitter, StopsAtTheSinksError) {
  const auto splitter = RegexSplitter::Compile("a");
  int calls = 0;
  const absl::Status status = splitter->Split("aaa", [&](std::string_view) {
    ++calls;
    return absl::AbortedError("enough");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace lockstep
