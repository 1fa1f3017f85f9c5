// Which tokens may come next, against asking for each of them whether some text goes on so.
#include "model/grammar/token_masks.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/grammar/constraint.h"
#include "model/grammar/constraint_cache.h"
#include "tests/model/grammar/random_grammar.h"
#include "tests/support/grammar_texts.h"

namespace lockstep::grammar {
namespace {

using ::lockstep::testing::RandomGrammar;
using ::lockstep::testing::RandomLetters;

constexpr int32_t kEnd = 1;

// Token 0 is special, 1 the end of texts; "", letters, and random texts, some of them twice.
std::vector<std::string> SomeTokens(uint32_t seed, int num) {
  std::mt19937 random(seed);
  std::vector<std::string> tokens = {"", "", "", "a", "b", "c"};
  while (std::ssize(tokens) < num) tokens.push_back(RandomLetters(random, 5));
  return tokens;
}

std::unique_ptr<MaskedVocabulary> VocabularyOf(const std::vector<std::string>& tokens,
                                               int32_t first, int32_t last) {
  TokenTexts texts(static_cast<int32_t>(tokens.size()),
                   [&](int32_t token) { return tokens[static_cast<size_t>(token)]; });
  return std::make_unique<MaskedVocabulary>(std::move(texts), first, last,
                                            std::vector<int32_t>{kEnd});
}
std::unique_ptr<MaskedVocabulary> VocabularyOf(const std::vector<std::string>& tokens) {
  return VocabularyOf(tokens, 0, static_cast<int32_t>(tokens.size()));
}

bool IsSet(std::span<const uint32_t> mask, int32_t index) {
  return (mask[static_cast<size_t>(index) / 32] >> (index % 32) & 1) != 0;
}

// Of tokens [first, last), after a text that some text of the grammar begins with.
std::vector<bool> PlainMask(const Grammar& grammar, const std::vector<std::string>& tokens,
                            const std::string& text, int32_t first, int32_t last) {
  std::vector<bool> mask;
  for (int32_t token = first; token < last; ++token) {
    const std::string& added = tokens[static_cast<size_t>(token)];
    mask.push_back(token == kEnd ? Matches(grammar, text)
                                 : !added.empty() && IsPrefix(grammar, text + added));
  }
  return mask;
}

std::vector<bool> Bits(std::span<const uint32_t> mask, int32_t count) {
  std::vector<bool> bits;
  for (int32_t i = 0; i < count; ++i) bits.push_back(IsSet(mask, i));
  return bits;
}

TEST(TokenTrie, HasEveryTokenOnce) {
  const std::vector<std::string> tokens = SomeTokens(3, 200);
  const auto vocabulary = VocabularyOf(tokens);
  std::vector<int32_t> some;
  for (int32_t token = 50; token < 150; ++token) {
    if (!tokens[static_cast<size_t>(token)].empty()) some.push_back(token);
  }
  const TokenTrie trie(vocabulary->texts(), some);
  std::vector<std::string> found(tokens.size());
  std::string path;
  for (size_t i = 0; i < trie.nodes().size(); ++i) {
    const TokenTrie::Node& node = trie.nodes()[i];
    path.resize(node.depth);
    path += static_cast<char>(node.byte);
    EXPECT_GT(node.after, static_cast<int32_t>(i));
    for (const int32_t token : trie.tokens(static_cast<int64_t>(i))) {
      EXPECT_EQ(found[static_cast<size_t>(token)], "") << "token " << token << " twice";
      found[static_cast<size_t>(token)] = path;
    }
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(found[i], i >= 50 && i < 150 ? tokens[i] : "") << "token " << i;
  }
}

TEST(TokenMasks, AllowWhatSomeTextGoesOnWith) {
  int num_allowed = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const absl::StatusOr<Grammar> grammar = RandomGrammar(seed).Build();
    if (!grammar.ok()) continue;
    const std::vector<std::string> tokens = SomeTokens(seed, 40);
    const auto vocabulary = VocabularyOf(tokens);
    OutputMatcher output(std::make_shared<TokenMasks>(*grammar, *vocabulary));
    std::mt19937 random(seed);
    std::string text;
    for (int step = 0; step < 12; ++step) {
      const std::vector<bool> expected = PlainMask(*grammar, tokens, text, 0, 40);
      ASSERT_EQ(Bits(*output.Allowed(), 40), expected) << "seed " << seed << " after " << text;
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < 40; ++token) {
        if (expected[static_cast<size_t>(token)] && token != kEnd) allowed.push_back(token);
      }
      if (allowed.empty()) break;
      num_allowed += static_cast<int>(allowed.size());
      const int32_t token = allowed[random() % allowed.size()];
      text += tokens[static_cast<size_t>(token)];
      output.Add(token);
    }
  }
  EXPECT_GT(num_allowed, 2000);
}

// Where any plain character may come, however many of them, or not, and others may, or not.
TEST(TokenMasks, OfPlainTextAreAsIfEachTokenWereAskedFor) {
  std::vector<std::string> tokens = {"",     "",     " ",      "\"",       "\\",   "\n",  "é",
                                     "\xC3", "\xA9", "🙂",   "\xF0\x9F", "\x7F", "x\"", "\"y",
                                     "\\n",  " the", "日本語", "a\tb",     "."};
  for (int n = 1; n < 40; n += 3) {
    tokens.push_back(std::string(static_cast<size_t>(n), 'a'));
    tokens.push_back(std::string(static_cast<size_t>(n), ' ') + "é\"");
    tokens.push_back("日" + std::string(static_cast<size_t>(n), 'b'));
  }
  const auto size = static_cast<int32_t>(tokens.size());
  const auto vocabulary = VocabularyOf(tokens);
  std::mt19937 random(8);
  int num_states = 0;
  for (const char* regex : {R"(.*)", R"("([^"\\\x00-\x1F]|\\["\\n])*")",
                            R"(("[^"]{0,21}"|\[.{3,18}\]) ?)", R"([^b]{0,40})", R"((.|\n){16})",
                            R"([ -~]{0,20}é)", R"((a|é|[^aé]){0,9}z)", R"(.{17}|.{5}"x)"}) {
    const Grammar grammar = CompileConstraint({OutputConstraint::Kind::kRegex, regex}).value();
    const auto masks = std::make_shared<TokenMasks>(grammar, *vocabulary);
    const auto few = std::make_shared<TokenMasks>(grammar, *vocabulary, /*max_states=*/20);
    for (int output = 0; output < 4; ++output) {
      OutputMatcher one(masks);
      OutputMatcher other(few);
      std::string text;
      for (int step = 0; step < 12; ++step) {
        const std::vector<bool> expected = PlainMask(grammar, tokens, text, 0, size);
        ASSERT_EQ(Bits(*one.Allowed(), size), expected) << regex << " after " << text;
        ASSERT_EQ(Bits(*other.Allowed(), size), expected) << regex << " after " << text;
        std::vector<int32_t> allowed;
        for (int32_t token = 2; token < size; ++token) {
          if (expected[static_cast<size_t>(token)]) allowed.push_back(token);
        }
        if (allowed.empty()) break;
        const int32_t token = allowed[random() % allowed.size()];
        text += tokens[static_cast<size_t>(token)];
        one.Add(token);
        other.Add(token);
        ++num_states;
      }
    }
  }
  EXPECT_GT(num_states, 100);
}

TEST(PlainReach, CountsUntilSomethingElseMustCome) {
  const auto reach_of = [](const char* regex) {
    TextAutomaton automaton(CompileConstraint({OutputConstraint::Kind::kRegex, regex}).value());
    PlainReach reach;
    return reach.Of(automaton, automaton.Start(), 16);
  };
  EXPECT_EQ(reach_of(".*"), PlainReach::kAnyNumber);
  EXPECT_EQ(reach_of("[^\"]*\""), PlainReach::kAnyNumber);
  EXPECT_EQ(reach_of(".{0,100}"), 16);
  EXPECT_EQ(reach_of(".{0,7}x"), 7);
  EXPECT_EQ(reach_of(".{3}"), 3);
  EXPECT_EQ(reach_of("[^b]*"), 0);
  EXPECT_EQ(reach_of(".[^b]*"), 1);
  EXPECT_EQ(reach_of("a"), 0);
}

// More than ways are followed, of which nothing tells until their end.
TEST(TokenMasks, AnyOfManyChoicesCanBeWritten) {
  std::string choices;
  for (int i = 1000; i < 2000; ++i)
    choices += (i == 1000 ? "\"item " : ",\"item ") + std::to_string(i) + '"';
  const auto vocabulary = VocabularyOf({"", "", "item 1", "999", "000"});
  const auto masks = std::make_shared<TokenMasks>(
      CompileConstraint({OutputConstraint::Kind::kChoices, "[" + choices + "]"}).value(),
      *vocabulary);
  OutputMatcher output(masks);
  EXPECT_EQ(Bits(*output.Allowed(), 5), (std::vector<bool>{false, false, true, false, false}));
  output.Add(2);
  EXPECT_EQ(Bits(*output.Allowed(), 5), (std::vector<bool>{false, false, false, true, true}));
}

// What comes is told apart hundreds of characters later, so every token leads to another state.
void ExpectShortTokens(int num_tokens) {
  std::mt19937 random(2);
  std::vector<std::string> tokens = {"", "", "a", "b", "c"};
  while (std::ssize(tokens) < num_tokens) {
    std::string token;
    while (token.size() < 12) token += static_cast<char>('a' + random() % 3);
    tokens.push_back(token);
  }
  const auto vocabulary = VocabularyOf(tokens);
  const auto of = [&](const char* regex) {
    return std::make_shared<TokenMasks>(
        CompileConstraint({OutputConstraint::Kind::kRegex, regex}).value(), *vocabulary);
  };
  const auto masks = of("[abc]*(?:a[abc]{300}|b[abc]{301}|c[abc]{302})");
  OutputMatcher output(masks);
  OutputMatcher easy(of("[abc]*"));
  for (int i = 0; i < 300; ++i) output.Add(2 + static_cast<int32_t>(random() % 3));
  const std::vector<bool> allowed = Bits(*output.Allowed(), num_tokens);
  EXPECT_EQ(std::vector<bool>(allowed.begin(), allowed.begin() + 6),
            (std::vector<bool>{false, false, true, true, true, false}));
  EXPECT_TRUE(Bits(*easy.Allowed(), num_tokens)[5]);
}

TEST(TokenMasks, OfTextsThatTakeTooMuchWorkGoOnWithShortTokens) { ExpectShortTokens(4000); }

// Which would take a state of few ways no work that counts.
TEST(TokenMasks, StatesOfManyWaysTakeLessWork) { ExpectShortTokens(12); }

TEST(TokenMasks, PartsTogetherAreTheWhole) {
  const std::vector<std::string> tokens = SomeTokens(9, 77);
  const auto whole = VocabularyOf(tokens);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const absl::StatusOr<Grammar> grammar = RandomGrammar(seed).Build();
    if (!grammar.ok()) continue;
    TokenMasks masks(*grammar, *whole);
    TokenMasks::Place place;
    const std::vector<bool> expected = Bits(*masks.Allowed(place), 77);
    std::vector<bool> together;
    for (const auto& [first, last] : {std::pair{0, 33}, std::pair{33, 66}, std::pair{66, 77}}) {
      const auto part = VocabularyOf(tokens, first, last);
      TokenMasks part_masks(*grammar, *part);
      TokenMasks::Place start;
      const std::vector<bool> bits = Bits(*part_masks.Allowed(start), last - first);
      together.insert(together.end(), bits.begin(), bits.end());
    }
    EXPECT_EQ(together, expected) << seed;
  }
}

// Outputs side by side whose states are forgotten again and again.
TEST(TokenMasks, AreTheSameHoweverFewStatesAreKept) {
  const std::vector<std::string> tokens = SomeTokens(4, 60);
  const auto vocabulary = VocabularyOf(tokens);
  for (uint32_t seed = 0; seed < 25; ++seed) {
    const absl::StatusOr<Grammar> grammar = RandomGrammar(seed).Build();
    if (!grammar.ok()) continue;
    const auto many = std::make_shared<TokenMasks>(*grammar, *vocabulary);
    const auto few = std::make_shared<TokenMasks>(*grammar, *vocabulary, /*max_states=*/3);
    std::vector<std::pair<OutputMatcher, OutputMatcher>> outputs;
    for (int i = 0; i < 3; ++i) outputs.emplace_back(OutputMatcher(many), OutputMatcher(few));
    std::mt19937 random(seed);
    for (int step = 0; step < 10; ++step) {
      for (auto& [one, other] : outputs) {
        const std::vector<bool> allowed = Bits(*one.Allowed(), 60);
        ASSERT_EQ(Bits(*other.Allowed(), 60), allowed) << seed << " step " << step;
        const auto token = static_cast<int32_t>(random() % 60);
        if (!allowed[static_cast<size_t>(token)]) continue;
        one.Add(token);
        other.Add(token);
      }
    }
  }
}

TEST(TokenMasks, OfStatesThatComeBackAreMadeOnce) {
  GrammarBuilder builder;
  const auto vocabulary = VocabularyOf({"", "", "a", "b", "aa"});
  const auto masks = std::make_shared<TokenMasks>(
      *builder.Build(builder.Repeat(builder.Text("a"), 0, std::nullopt)), *vocabulary);
  OutputMatcher first(masks);
  OutputMatcher second(masks);
  for (int i = 0; i < 20; ++i) {
    first.Allowed();
    second.Allowed();
    first.Add(2);
    second.Add(4);
  }
  EXPECT_LE(masks->num_masks_made(), 2);
}

TEST(OutputMatcher, EndsWithTheTextOrWithATokenThatDoesNotFit) {
  GrammarBuilder builder;
  const auto vocabulary = VocabularyOf({"", "", "a", "b"});
  const auto masks = std::make_shared<TokenMasks>(*builder.Build(builder.Text("ab")), *vocabulary);
  const std::vector<bool> only_end = {false, true, false, false};
  OutputMatcher whole(masks);
  EXPECT_EQ(Bits(*whole.Allowed(), 4), (std::vector<bool>{false, false, true, false}));
  whole.Add(2);
  whole.Add(3);
  EXPECT_EQ(Bits(*whole.Allowed(), 4), only_end);
  whole.Add(kEnd);
  EXPECT_EQ(Bits(*whole.Allowed(), 4), only_end);
  for (const int32_t token : {3, 0, 99}) {
    OutputMatcher broken(masks);
    broken.Add(token);
    EXPECT_EQ(Bits(*broken.Allowed(), 4), only_end) << "token " << token;
    broken.Add(2);
    EXPECT_EQ(Bits(*broken.Allowed(), 4), only_end) << "token " << token;
  }
}

OutputConstraint Regex(const std::string& pattern) {
  return {OutputConstraint::Kind::kRegex, pattern};
}

TEST(ConstraintCache, OutputsWithTheSameConstraintShareIt) {
  const auto vocabulary = VocabularyOf({"", "", "a", "b"});
  int num_asked = 0;
  ConstraintCache cache([&] {
    ++num_asked;
    return vocabulary.get();
  });
  EXPECT_EQ(num_asked, 0);
  const auto first = *cache.Get(Regex("a+"));
  EXPECT_EQ(*cache.Get(Regex("a+")), first);
  EXPECT_NE(*cache.Get(Regex("b+")), first);
  EXPECT_NE(*cache.Get({OutputConstraint::Kind::kChoices, R"(["a+"])"}), first);
  EXPECT_FALSE(cache.Get(Regex("(")).ok());
}

TEST(ConstraintCache, ThoseInUseStayAndTheLatestOfOthers) {
  const auto vocabulary = VocabularyOf({"", "", "a", "b"});
  ConstraintCache cache([&] { return vocabulary.get(); });
  const auto used = *cache.Get(Regex("a"));
  const std::weak_ptr<TokenMasks> oldest = *cache.Get(Regex("b"));
  std::weak_ptr<TokenMasks> latest;
  for (size_t i = 0; i < ConstraintCache::kMaxIdle; ++i) {
    latest = *cache.Get(Regex(std::string(i + 2, 'a')));
  }
  EXPECT_TRUE(oldest.expired());
  EXPECT_FALSE(latest.expired());
  EXPECT_EQ(*cache.Get(Regex("a")), used);
}

TEST(ConstraintCache, OfManyThatWereInUseAtOnceFewStay) {
  const auto vocabulary = VocabularyOf({"", "", "a", "b"});
  ConstraintCache cache([&] { return vocabulary.get(); });
  std::vector<std::shared_ptr<TokenMasks>> used;
  std::vector<std::weak_ptr<TokenMasks>> all;
  for (size_t i = 0; i < 3 * ConstraintCache::kMaxIdle; ++i) {
    used.push_back(*cache.Get(Regex(std::string(i + 1, 'a'))));
    all.emplace_back(used.back());
  }
  used.clear();
  ASSERT_TRUE(cache.Get(Regex("b")).ok());
  const auto num_left =
      std::count_if(all.begin(), all.end(), [](const auto& masks) { return !masks.expired(); });
  EXPECT_LT(num_left, static_cast<ptrdiff_t>(ConstraintCache::kMaxIdle));
}

TEST(ConstraintCache, OfThoseThatNoOutputHasWhatHoldsMuchGoesFirst) {
  const auto vocabulary = VocabularyOf({"", "", "a", "b"});
  ConstraintCache cache([&] { return vocabulary.get(); });
  std::weak_ptr<TokenMasks> large;
  {
    OutputMatcher output(*cache.Get(Regex("a{5000}")));
    large = *cache.Get(Regex("a{5000}"));
    for (int i = 0; i < 3000; ++i) output.Add(2);
    EXPECT_TRUE(cache.Get(Regex("a")).ok());
    EXPECT_FALSE(large.expired()) << "an output has it";
  }
  const std::weak_ptr<TokenMasks> small = *cache.Get(Regex("a"));
  EXPECT_TRUE(cache.Get(Regex("b")).ok());
  EXPECT_TRUE(large.expired());
  EXPECT_FALSE(small.expired());
}

TEST(ConstraintCache, ErrorsOfTheVocabularyAreTold) {
  ConstraintCache cache([]() -> absl::StatusOr<const MaskedVocabulary*> {
    return absl::NotFoundError("no tokenizer.json");
  });
  EXPECT_EQ(cache.Get(Regex("a")).status().message(), "no tokenizer.json");
}

}  // namespace
}  // namespace lockstep::grammar
