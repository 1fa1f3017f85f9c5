// Grammars as they are put together, against the texts that they should have.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/grammar/grammar.h"
#include "model/tokenizer/utf8.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

using ::testing::HasSubstr;
using Part = GrammarBuilder::Part;

Grammar BuildOrDie(const GrammarBuilder& builder, Part root) {
  absl::StatusOr<Grammar> grammar = builder.Build(root);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *std::move(grammar);
}

std::string ErrorOf(const GrammarBuilder& builder, Part root) {
  return std::string(builder.Build(root).status().message());
}

void ExpectTexts(const Grammar& grammar, const std::vector<std::string>& texts,
                 const std::vector<std::string>& others) {
  for (const std::string& text : texts) EXPECT_TRUE(Matches(grammar, text)) << '"' << text << '"';
  for (const std::string& text : others) EXPECT_FALSE(Matches(grammar, text)) << '"' << text << '"';
}

TEST(GrammarBuilder, SequencesAndChoicesAndRepeats) {
  GrammarBuilder builder;
  const Part ab = builder.Choice({builder.Text("a"), builder.Text("bc")});
  const Part root = builder.Sequence({builder.Text("<"), builder.Repeat(ab, 1, 3),
                                      builder.Optional(builder.Text("!")), builder.Text(">")});
  ExpectTexts(BuildOrDie(builder, root), {"<a>", "<bc>", "<abca>", "<aaa!>"},
              {"", "<>", "<!>", "<aaaa>", "<b>", "<a", "<a>>", "<a!!>"});
}

TEST(GrammarBuilder, RepeatsHaveTheirBounds) {
  GrammarBuilder builder;
  const Part a = builder.Text("a");
  ExpectTexts(BuildOrDie(builder, builder.Repeat(a, 0, 0)), {""}, {"a"});
  ExpectTexts(BuildOrDie(builder, builder.Repeat(a, 2, 2)), {"aa"}, {"", "a", "aaa"});
  ExpectTexts(BuildOrDie(builder, builder.Repeat(a, 2, std::nullopt)), {"aa", "aaaaaaa"},
              {"", "a", "aab"});
  const Part nothing_or_a = builder.Optional(a);
  ExpectTexts(BuildOrDie(builder, builder.Repeat(nothing_or_a, 2, std::nullopt)), {"", "a", "aaaa"},
              {"b"});
  ExpectTexts(BuildOrDie(builder, builder.Repeat(nothing_or_a, 0, 2)), {"", "a", "aa"}, {"aaa"});
}

TEST(GrammarBuilder, RulesCallThemselves) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule list = builder.Declare();
  const Part item = builder.Choice({builder.Text("x"), builder.Call(list)});
  builder.Define(list, builder.Sequence({builder.Text("("), builder.Repeat(item, 0, std::nullopt),
                                         builder.Text(")")}));
  ExpectTexts(BuildOrDie(builder, builder.Call(list)), {"()", "(x)", "(x(xx)())", "((((x))))"},
              {"", "x", "(", "())", "(x))", "((x)"});
}

TEST(GrammarBuilder, RulesThatReadNothingEndAndAreNoLoop) {
  GrammarBuilder builder;
  const Part maybe = builder.MakeRule(builder.Optional(builder.Text("a")));
  ExpectTexts(BuildOrDie(builder, builder.Repeat(maybe, 0, std::nullopt)), {"", "a", "aaa"}, {"b"});
  const GrammarBuilder::Rule tail = builder.Declare();
  builder.Define(tail, builder.Choice({builder.Empty(),
                                       builder.Sequence({builder.Text("b"), builder.Call(tail)})}));
  ExpectTexts(BuildOrDie(builder, builder.Sequence({maybe, builder.Call(tail)})), {"", "a", "abbb"},
              {"aa", "ba"});
}

TEST(GrammarBuilder, WhoCallsItselfBeforeReadingIsRefused) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule direct = builder.Declare();
  builder.Define(direct,
                 builder.Choice({builder.Sequence({builder.Call(direct), builder.Text("a")}),
                                 builder.Text("b")}));
  EXPECT_THAT(ErrorOf(builder, builder.Call(direct)), HasSubstr("refers to itself"));
  // Behind what may be nothing, and by way of another.
  const GrammarBuilder::Rule first = builder.Declare();
  const GrammarBuilder::Rule second = builder.Declare();
  const Part maybe = builder.MakeRule(builder.Optional(builder.Text("x")));
  builder.Define(first, builder.Sequence({maybe, builder.Call(second)}));
  builder.Define(second, builder.Choice({builder.Call(first), builder.Text("y")}));
  EXPECT_THAT(ErrorOf(builder, builder.Call(first)), HasSubstr("refers to itself"));
  EXPECT_THAT(ErrorOf(builder, builder.Sequence({builder.Text("z"), builder.Call(second)})),
              HasSubstr("refers to itself"));
}

// Behind what may be nothing there is text.
TEST(GrammarBuilder, RulesThatReadSomethingFirstMayReferToThemselves) {
  GrammarBuilder builder;
  const Part maybe = builder.MakeRule(builder.Optional(builder.Text("n")));
  const Part before = builder.MakeRule(builder.Sequence({maybe, builder.Text("x")}));
  const GrammarBuilder::Rule rule = builder.Declare();
  builder.Define(
      rule, builder.Choice({builder.Sequence({before, builder.Call(rule)}), builder.Text("z")}));
  const Grammar grammar = BuildOrDie(builder, builder.Call(rule));
  EXPECT_TRUE(Matches(grammar, "xnxz"));
  EXPECT_FALSE(Matches(grammar, "nz"));
}

TEST(GrammarBuilder, WhatLeadsNowhereIsLeftOut) {
  GrammarBuilder builder;
  const Part nothing = builder.Choice({});
  EXPECT_THAT(ErrorOf(builder, nothing), HasSubstr("no text matches"));
  const GrammarBuilder::Rule endless = builder.Declare();
  builder.Define(endless, builder.Sequence({builder.Text("a"), builder.Call(endless)}));
  EXPECT_THAT(ErrorOf(builder, builder.Call(endless)), HasSubstr("no text matches"));
  const Grammar grammar =
      BuildOrDie(builder, builder.Choice({builder.Sequence({builder.Text("a"), nothing}),
                                          builder.Call(endless), builder.Text("ok")}));
  EXPECT_TRUE(Matches(grammar, "ok"));
  EXPECT_FALSE(IsPrefix(grammar, "a")) << "no text goes on from there";
}

TEST(GrammarBuilder, SizesAreBoundedBeforeTheyAreMade) {
  GrammarBuilder builder;
  Part part = builder.Text("a");
  for (int i = 0; i < 40; ++i) part = builder.Repeat(part, 0, 1000000000);
  EXPECT_THAT(ErrorOf(builder, part), HasSubstr("more than 65536 states"));
  Part doubled = builder.Text("a");
  for (int i = 0; i < 100; ++i) doubled = builder.Sequence({doubled, doubled});
  EXPECT_THAT(ErrorOf(builder, doubled), HasSubstr("more than 65536 states"));
  // Few states, but each leads to all that follow.
  const Part maybe = builder.Optional(builder.Text("a"));
  EXPECT_THAT(ErrorOf(builder, builder.Repeat(maybe, 20000, 20000)), HasSubstr("too large"));
  EXPECT_TRUE(builder.Build(builder.Repeat(builder.Text("a"), 0, 30000)).ok());
}

TEST(GrammarBuilder, RulesMayNestAsDeepAsTextsMay) {
  const auto nested = [](int depth, const char* end) {
    GrammarBuilder builder;
    Part part = builder.Text("a");
    for (int i = 0; i < depth; ++i) {
      part = builder.MakeRule(builder.Sequence({part, builder.Text(end)}));
    }
    return builder.Build(part).status();
  };
  EXPECT_TRUE(nested(kMaxDepth - 1, ")").ok());
  EXPECT_THAT(std::string(nested(kMaxDepth + 1, ")").message()),
              HasSubstr("nested more than 512 deep"));
  EXPECT_TRUE(nested(20000, "").ok()) << "what is called last does not nest";
}

TEST(GrammarBuilder, CharactersAreWhatTheirRangesSay) {
  std::mt19937 random(5);
  constexpr char32_t kEdges[] = {0x0,     0x1,      0x7F,     0x80,   0x7FF,   0x800,   0xFFF,
                                 0x1000,  0xD7FF,   0xE000,   0xFFFF, 0x10000, 0x3FFFF, 0x40000,
                                 0xFFFFF, 0x100000, 0x10FFFF, 0x20AC, 0x1F600};
  std::uniform_int_distribution<size_t> edge(0, std::size(kEdges) - 1);
  std::uniform_int_distribution<int> shift(-2, 2);
  const auto draw = [&] {
    const int64_t character = int64_t{kEdges[edge(random)]} + shift(random);
    return static_cast<char32_t>(std::clamp<int64_t>(character, 0, 0x10FFFF));
  };
  for (int i = 0; i < 200; ++i) {
    std::vector<CodePointRange> ranges;
    for (int n = i % 3; n >= 0; --n) {
      const char32_t a = draw();
      const char32_t b = draw();
      ranges.push_back({std::min(a, b), std::max(a, b)});
    }
    GrammarBuilder builder;
    const absl::StatusOr<Grammar> grammar = builder.Build(builder.Character(ranges));
    for (int n = 0; n < 50; ++n) {
      const char32_t character = draw();
      if (character >= 0xD800 && character <= 0xDFFF) continue;
      const bool is_in = std::any_of(ranges.begin(), ranges.end(), [&](const CodePointRange& r) {
        return character >= r.first && character <= r.last;
      });
      std::string text;
      AppendCodePoint(character, text);
      ASSERT_EQ(grammar.ok() && Matches(*grammar, text), is_in) << static_cast<uint32_t>(character);
    }
  }
}

TEST(GrammarBuilder, NoSurrogateIsACharacter) {
  GrammarBuilder builder;
  const CodePointRange all = {0, 0x10FFFF};
  const Grammar grammar = BuildOrDie(builder, builder.Character({&all, 1}));
  for (const char* text :
       {"\xED\xA0\x80", "\xED\xBF\xBF", "\xC0\x80", "\xF4\x90\x80\x80", "\x80"}) {
    EXPECT_FALSE(IsPrefix(grammar, text));
  }
  EXPECT_TRUE(Matches(grammar, "\xED\x9F\xBF"));
  EXPECT_TRUE(Matches(grammar, "\xF4\x8F\xBF\xBF"));
}

}  // namespace
}  // namespace lockstep::grammar
