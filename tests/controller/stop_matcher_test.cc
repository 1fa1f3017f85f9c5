#include "runtime/controller/stop_matcher.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

struct Fed {
  std::string text;
  std::optional<std::string> matched;
};

Fed Feed(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Fed fed;
  for (const std::string& piece : pieces) fed.text += matcher.Add(piece);
  fed.text += matcher.Finish();
  fed.matched = matcher.matched();
  return fed;
}

TEST(StopMatcherTest, WithoutStopsEverythingPassesAtOnce) {
  StopMatcher matcher({}, false);
  EXPECT_EQ(matcher.Add("abc"), "abc");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcherTest, TextEndsBeforeTheMatch) {
  const Fed fed = Feed(StopMatcher({"END"}, false), {"one E", "N", "D two"});
  EXPECT_EQ(fed.text, "one ");
  EXPECT_EQ(fed.matched, "END");
}

TEST(StopMatcherTest, IncludedMatchStays) {
  EXPECT_EQ(Feed(StopMatcher({"END"}, true), {"one E", "ND two"}).text, "one END");
}

TEST(StopMatcherTest, HoldsBackOnlyWhatCouldStillMatch) {
  StopMatcher matcher({"abab!"}, false);
  EXPECT_EQ(matcher.Add("xab"), "x");
  EXPECT_EQ(matcher.Add("ab"), "");
  EXPECT_EQ(matcher.Add("ab"), "ab");  // "abab" may still become "abab!"
  EXPECT_EQ(matcher.Add("?"), "abab?");
}

TEST(StopMatcherTest, HeldBackTextComesAtTheEnd) {
  const Fed fed = Feed(StopMatcher({"END"}, false), {"one EN"});
  EXPECT_EQ(fed.text, "one EN");
  EXPECT_FALSE(fed.matched);
}

TEST(StopMatcherTest, FirstCompleteMatchWinsThenTheLongest) {
  EXPECT_EQ(Feed(StopMatcher({"bcd", "c"}, false), {"abcd"}).matched, "c");
  EXPECT_EQ(Feed(StopMatcher({"c", "bc"}, false), {"abc"}).matched, "bc");
}

TEST(StopMatcherTest, NothingFollowsAMatch) {
  StopMatcher matcher({"."}, false);
  EXPECT_EQ(matcher.Add("a.b"), "a");
  EXPECT_EQ(matcher.Add("c"), "");
  EXPECT_EQ(matcher.Finish(), "");
}

// However the text is cut, the result is that of the whole text.
TEST(StopMatcherTest, WhatEndsWhereNoneMayIsTextAndMayBeginAnother) {
  StopMatcher matcher({"aXa"}, false);
  EXPECT_EQ(matcher.Add("-aX", /*may_match=*/false), "-");
  EXPECT_EQ(matcher.Add("a", /*may_match=*/false), "aX");
  EXPECT_EQ(matcher.matched(), std::nullopt);
  EXPECT_EQ(matcher.Add("Xa-"), "");
  EXPECT_EQ(matcher.matched(), "aXa");
  StopMatcher nul({"ab"}, false);  // what follows a match is not read behind the stop string's end
  EXPECT_EQ(nul.Add(std::string("ab\0\0c", 5), /*may_match=*/false), std::string("ab\0\0c", 5));
}

TEST(StopMatcherTest, CutsDoNotMatter) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const auto word = [&](int max_length) {
      std::string out(1 + random() % max_length, 'a');
      for (char& c : out) c = static_cast<char>('a' + random() % 2);
      return out;
    };
    std::vector<std::string> stops;
    for (unsigned i = 0; i < 1 + random() % 3; ++i) stops.push_back(word(5));
    const std::string text = word(24);
    const bool include = random() % 2 == 0;
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 4;
      pieces.push_back(text.substr(at, length));
      at += length;
    }
    const Fed whole = Feed(StopMatcher(stops, include), {text});
    const Fed cut = Feed(StopMatcher(stops, include), pieces);
    ASSERT_EQ(cut.text, whole.text) << text;
    ASSERT_EQ(cut.matched, whole.matched) << text;
  }
}

struct Cut {
  size_t begin = std::string::npos;
  size_t end = std::string::npos;
};

// The definition, the slow way: the shortest prefix of the text that ends in a stop, and of the
// stops it ends in the longest.
Cut FirstMatch(const std::vector<std::string>& stops, std::string_view text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    Cut cut;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) cut = {std::min(cut.begin, end - stop.size()), end};
    }
    if (cut.end == end) return cut;
  }
  return {};
}

// The longest end of the text that a stop properly begins with.
size_t LongestBeginning(const std::vector<std::string>& stops, std::string_view text) {
  for (size_t n = text.size(); n > 0; --n) {
    for (const std::string& stop : stops) {
      if (stop.size() > n && stop.starts_with(text.substr(text.size() - n))) return n;
    }
  }
  return 0;
}

TEST(StopMatcherTest, FindsAndHoldsBackWhatTheDefinitionSays) {
  std::mt19937 random(2);
  int num_matched = 0;
  for (int round = 0; round < 5000; ++round) {
    const auto word = [&](int max_length) {
      std::string out(1 + random() % max_length, 'a');
      for (char& c : out) c = static_cast<char>('a' + random() % 3);
      return out;
    };
    std::vector<std::string> stops;
    for (unsigned i = 0; i < 1 + random() % 4; ++i) stops.push_back(word(6));
    const std::string text = word(30);
    const bool include = random() % 2 == 0;
    const Cut cut = FirstMatch(stops, text);
    StopMatcher matcher(stops, include);
    std::string seen, certain;
    for (const char c : text) {
      certain += matcher.Add(std::string_view(&c, 1));
      seen += c;
      if (seen.size() >= cut.end) break;
      ASSERT_EQ(certain, seen.substr(0, seen.size() - LongestBeginning(stops, seen))) << text;
    }
    ASSERT_EQ(matcher.matched().has_value(), cut.end != std::string::npos) << text;
    if (!matcher.matched()) continue;
    ++num_matched;
    ASSERT_EQ(certain, text.substr(0, include ? cut.end : cut.begin)) << text;
    ASSERT_EQ(*matcher.matched(), text.substr(cut.begin, cut.end - cut.begin)) << text;
  }
  EXPECT_GT(num_matched, 1000);
}

// Adversarial stops and text: quadratic work per token would not finish.
TEST(StopMatcherTest, NearMissesOfLongStopsAreLinear) {
  std::vector<std::string> stops;
  for (size_t i = 0; i < 16; ++i) stops.push_back(std::string(240 + i, 'a') + "b");
  StopMatcher matcher(stops, false);
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += matcher.Add("a");
  text += matcher.Finish();
  EXPECT_EQ(text.size(), 200'000u);
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcherTest, CharactersOfManyBytesStayWhole) {
  StopMatcher matcher({"é!"}, false);
  EXPECT_EQ(matcher.Add("xè"), "xè");  // shares its first byte with é
  EXPECT_EQ(matcher.Add("é"), "");
  EXPECT_EQ(matcher.Add("é"), "é");
  EXPECT_EQ(matcher.Add("!"), "");
  EXPECT_EQ(matcher.matched(), "é!");
}

}  // namespace
}  // namespace lockstep
