// Constraints that a thought may come before.
#include "model/grammar/thought.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "model/grammar/constraint.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

using Thought = OutputConstraint::Thought;

Grammar CompiledOrDie(const OutputConstraint& constraint) {
  auto compiled = CompileConstraint(constraint);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return *std::move(compiled);
}

Grammar AnswerAfter(Thought thought) {
  return CompiledOrDie({OutputConstraint::Kind::kRegex, "a+", thought});
}

// What AnswerAfter must have, said without a grammar.
bool IsAnswer(absl::string_view text) {
  return !text.empty() && text.find_first_not_of('a') == absl::string_view::npos;
}
bool IsRestOfThoughtAndAnswer(absl::string_view text) {
  const size_t end = text.find("</think>");
  if (end == absl::string_view::npos) return false;
  const absl::string_view rest = text.substr(end + 8);
  const size_t answer = rest.find_first_not_of('\n');
  return answer != absl::string_view::npos && answer <= 4 && IsAnswer(rest.substr(answer));
}

std::string RandomText(std::mt19937& random) {
  static const std::vector<std::string> kPieces = {
      "</think>", "</think", "<",   "</", "</t", "</th", "</thi", "</thin", "<think>", ">",
      "a",        "a",       "aaa", "é",  "😀",   "\n",   " ",     "t",      "/",       "k>"};
  std::string text;
  std::uniform_int_distribution<size_t> piece(0, kPieces.size() - 1);
  for (int i = std::uniform_int_distribution<int>(0, 7)(random); i > 0; --i) {
    text += kPieces[piece(random)];
  }
  // Often enough one that fits.
  if (random() % 2 == 0) text += "</think>\n\naa";
  return text;
}

TEST(ThoughtTest, EndsWithTheFirstMarker) {
  const Grammar begun = AnswerAfter(Thought::kBegun);
  std::mt19937 random(7);
  int num_fits = 0;
  for (int i = 0; i < 8000; ++i) {
    const std::string text = RandomText(random);
    const bool fits = IsRestOfThoughtAndAnswer(text);
    EXPECT_EQ(Matches(begun, text), fits) << text;
    // However it goes on, until the thought has ended.
    if (text.find("</think>") == std::string::npos) {
      EXPECT_TRUE(IsPrefix(begun, text)) << text;
    }
    num_fits += fits ? 1 : 0;
  }
  EXPECT_GT(num_fits, 400);
}

TEST(ThoughtTest, IsAllowedOrNot) {
  const Grammar allowed = AnswerAfter(Thought::kAllowed);
  const Grammar none = AnswerAfter(Thought::kNone);
  std::mt19937 random(8);
  for (int i = 0; i < 5000; ++i) {
    const std::string rest = RandomText(random);
    const std::string thought = absl::StrCat("<think>", rest);
    EXPECT_EQ(Matches(allowed, thought), IsRestOfThoughtAndAnswer(rest)) << thought;
    EXPECT_EQ(Matches(allowed, rest),
              IsAnswer(rest) || (absl::string_view(rest).substr(0, 7) == "<think>" &&
                                 IsRestOfThoughtAndAnswer(absl::string_view(rest).substr(7))))
        << rest;
    EXPECT_EQ(Matches(none, rest), IsAnswer(rest)) << rest;
  }
  EXPECT_FALSE(Matches(none, "<think>b</think>a"));
}

TEST(ThoughtTest, HoldsNoControlCharacters) {
  const Grammar begun = AnswerAfter(Thought::kBegun);
  EXPECT_TRUE(IsPrefix(begun, "one\n\ttwo\r\n"));
  EXPECT_FALSE(IsPrefix(begun, std::string(1, 0)));
  EXPECT_FALSE(IsPrefix(begun, "\x1b"));
  EXPECT_FALSE(IsPrefix(begun, "\xff"));
}

}  // namespace
}  // namespace lockstep::grammar
