// The automaton of a grammar's texts against the plain reading of them, byte by byte.
#include "model/grammar/text_automaton.h"

#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/model/grammar/random_grammar.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

using ::lockstep::testing::RandomGrammar;
using ::lockstep::testing::RandomLetters;
using Part = GrammarBuilder::Part;

int32_t ReadText(TextAutomaton& automaton, std::string_view text) {
  int32_t state = automaton.Start();
  for (const char byte : text) {
    state = automaton.Next(state, static_cast<uint8_t>(byte));
    if (state == TextAutomaton::kNoState) break;
  }
  return state;
}

// ( ... ), each in the one before.
Grammar Parentheses() {
  GrammarBuilder builder;
  const GrammarBuilder::Rule list = builder.Declare();
  builder.Define(list, builder.Sequence({builder.Text("("), builder.Optional(builder.Call(list)),
                                         builder.Text(")")}));
  return *builder.Build(builder.Call(list));
}

TEST(TextAutomaton, ReadsWhatTheGrammarHas) {
  int num_ends = 0;
  int num_refused = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    const absl::StatusOr<Grammar> grammar = RandomGrammar(seed).Build();
    if (!grammar.ok()) continue;
    TextAutomaton automaton(*grammar);
    std::mt19937 random(seed);
    for (int i = 0; i < 40; ++i) {
      const std::string text = RandomLetters(random, 8);
      const int32_t state = ReadText(automaton, text);
      ASSERT_EQ(state != TextAutomaton::kNoState, IsPrefix(*grammar, text)) << seed << " " << text;
      if (state == TextAutomaton::kNoState) {
        ++num_refused;
        continue;
      }
      ASSERT_EQ(automaton.may_end(state), Matches(*grammar, text)) << seed << " " << text;
      num_ends += automaton.may_end(state) ? 1 : 0;
    }
  }
  EXPECT_GT(num_ends, 300);
  EXPECT_GT(num_refused, 1000);
}

TEST(TextAutomaton, AStateStaysWhatItIsWhenOthersAreForgotten) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const absl::StatusOr<Grammar> grammar = RandomGrammar(seed).Build();
    if (!grammar.ok()) continue;
    TextAutomaton whole(*grammar);
    TextAutomaton cleared(*grammar);
    std::mt19937 random(seed);
    for (int i = 0; i < 10; ++i) {
      int32_t state = whole.Start();
      int32_t kept = cleared.Start();
      for (const char byte : RandomLetters(random, 8)) {
        state = whole.Next(state, static_cast<uint8_t>(byte));
        kept = cleared.Next(kept, static_cast<uint8_t>(byte));
        ASSERT_EQ(state == TextAutomaton::kNoState, kept == TextAutomaton::kNoState) << seed;
        if (state == TextAutomaton::kNoState) break;
        ASSERT_EQ(whole.may_end(state), cleared.may_end(kept)) << seed;
        kept = cleared.ClearBut(kept);
        ASSERT_EQ(cleared.num_states(), 1);
        ASSERT_EQ(whole.may_end(state), cleared.may_end(kept)) << seed;
      }
    }
  }
}

TEST(TextAutomaton, TextsThatLoopNeedFewStates) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule list = builder.Declare();
  builder.Define(list,
                 builder.Sequence({builder.Text("a,"), builder.Optional(builder.Call(list))}));
  TextAutomaton automaton(*builder.Build(builder.Call(list)));
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "a,";
  EXPECT_NE(ReadText(automaton, text), TextAutomaton::kNoState)
      << "what is called last does not nest";
  EXPECT_LE(automaton.num_states(), 4);
}

TEST(TextAutomaton, WhatIsNestedTooDeeplyIsNotBegunSoThatAllThatIsBegunEnds) {
  TextAutomaton automaton(Parentheses());
  int32_t state = automaton.Start();
  int depth = 0;
  for (; state != TextAutomaton::kNoState && depth < 10000; ++depth) {
    const int32_t next = automaton.Next(state, '(');
    if (next == TextAutomaton::kNoState) break;
    state = next;
  }
  EXPECT_EQ(depth, kMaxDepth + 1);
  for (int i = 0; i < depth; ++i) {
    ASSERT_NE(state, TextAutomaton::kNoState) << i;
    EXPECT_FALSE(automaton.may_end(state));
    state = automaton.Next(state, ')');
  }
  EXPECT_TRUE(automaton.may_end(state));
}

// Each of the letters may be read in two ways, and nothing tells which until the end.
TEST(TextAutomaton, OfTooManyWaysSomeAreFollowedToTheirEnd) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule list = builder.Declare();
  const Part inside = builder.Optional(builder.Call(list));
  builder.Define(
      list, builder.Choice({builder.Sequence({builder.Text("a"), inside, builder.Text("x")}),
                            builder.Sequence({builder.Text("a"), inside, builder.Text("y")})}));
  TextAutomaton automaton(*builder.Build(builder.Call(list)));
  int32_t state = ReadText(automaton, std::string(40, 'a'));
  ASSERT_NE(state, TextAutomaton::kNoState);
  for (int i = 0; i < 40; ++i) {
    const int32_t x = automaton.Next(state, 'x');
    state = x != TextAutomaton::kNoState ? x : automaton.Next(state, 'y');
    ASSERT_NE(state, TextAutomaton::kNoState) << i;
  }
  EXPECT_TRUE(automaton.may_end(state));
}

TEST(TextAutomaton, IsFullWhenThereAreSoManyStates) {
  GrammarBuilder builder;
  TextAutomaton automaton(*builder.Build(builder.Repeat(builder.Text("a"), 0, 1000)), 10);
  int32_t state = automaton.Start();
  while (!automaton.is_full()) state = automaton.Next(state, 'a');
  EXPECT_EQ(automaton.num_states(), 10);
  state = automaton.ClearBut(state);
  EXPECT_FALSE(automaton.is_full());
  for (int i = 9; i < 1000; ++i) {
    if (automaton.is_full()) state = automaton.ClearBut(state);
    state = automaton.Next(state, 'a');
    ASSERT_NE(state, TextAutomaton::kNoState) << i;
  }
  EXPECT_EQ(automaton.Next(state, 'a'), TextAutomaton::kNoState) << "it has counted on";
}

}  // namespace
}  // namespace lockstep::grammar
