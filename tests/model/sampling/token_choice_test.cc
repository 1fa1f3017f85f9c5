#include "model/sampling/token_choice.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Four tokens of probability 1/2, 1/4, 1/8, 1/8: numbers to add in one's head.
const std::vector<float> kRow = {std::log(4.0f), std::log(1.0f), std::log(2.0f), std::log(1.0f)};
constexpr double kTotal = 2.0;  // weights 1, 1/2, 1/4, 1/4 relative to the largest

int32_t ChooseFrom(const std::vector<float>& row, ChoiceRule rule) {
  WholeRow source;
  source.Reset(row);
  TokenChooser chooser;
  return chooser.Choose(source, rule).value();
}

int32_t Choose(double uniform, ChoiceRule rule = {}) {
  rule.uniform = uniform;
  rule.max = kRow[0];
  rule.total = kTotal;
  return ChooseFrom(kRow, rule);
}

TEST(TokenChooser, WalksTokensInOrderOfProbability) {
  EXPECT_EQ(Choose(0.0), 0);
  EXPECT_EQ(Choose(0.49), 0);
  EXPECT_EQ(Choose(0.51), 2);
  EXPECT_EQ(Choose(0.74), 2);
  EXPECT_EQ(Choose(0.76), 1);  // ties: the lower id first
  EXPECT_EQ(Choose(0.87), 1);
  EXPECT_EQ(Choose(0.88), 3);
  EXPECT_EQ(Choose(0.999999), 3);
}

TEST(TokenChooser, TopKKeepsTheFirst) {
  EXPECT_EQ(Choose(0.99, {.top_k = 1}), 0);
  EXPECT_EQ(Choose(0.66, {.top_k = 2}), 0);  // 2/3 and 1/3
  EXPECT_EQ(Choose(0.67, {.top_k = 2}), 2);
  EXPECT_EQ(Choose(0.99, {.top_k = 1000}), 3);
}

TEST(TokenChooser, TopPKeepsTheShortestPrefixWithEnough) {
  EXPECT_EQ(Choose(0.99, {.top_p = 0.4}), 0);
  EXPECT_EQ(Choose(0.99, {.top_p = 0.6}), 2);
  EXPECT_EQ(Choose(0.99, {.top_p = 0.8}), 1);
  EXPECT_EQ(Choose(0.99, {.top_p = 0.9}), 3);
}

TEST(TokenChooser, TopPIsAShareOfTheTopK) {
  // Of the first two (2/3, 1/3) the first alone has at least 0.6.
  EXPECT_EQ(Choose(0.99, {.top_k = 2, .top_p = 0.6}), 0);
  EXPECT_EQ(Choose(0.99, {.top_k = 2, .top_p = 0.7}), 2);
}

TEST(TokenChooser, MinPIsRelativeToTheLargest) {
  EXPECT_EQ(Choose(0.99, {.min_p = 0.6}), 0);
  EXPECT_EQ(Choose(0.99, {.min_p = 0.4}), 2);
  EXPECT_EQ(Choose(0.99, {.min_p = 0.2}), 3);
  EXPECT_EQ(Choose(0.99, {.top_k = 3, .top_p = 0.99, .min_p = 0.4}), 2);
}

TEST(TokenChooser, NeverChoosesAnImpossibleToken) {
  const float kNegInf = -std::numeric_limits<float>::infinity();
  const std::vector<float> row = {kNegInf, 1.0f, kNegInf};
  EXPECT_EQ(ChooseFrom(row, {.uniform = 0.999999, .max = 1.0, .total = 1.0}), 1);
  // A total that came out a little large must not lead past the end.
  EXPECT_EQ(ChooseFrom(row, {.uniform = 0.999999, .max = 1.0, .total = 1.1}), 1);
  EXPECT_EQ(ChooseFrom({kNegInf, kNegInf}, {.max = kNegInf}), 0);
}

// All weights in turn may come to a rounding less than the total.
TEST(TokenChooser, ADrawBetweenTheSumAndTheTotalChoosesTheLikeliestToken) {
  ChoiceRule rule{.uniform = 0.999999, .max = kRow[0], .total = kTotal * 1.00001};
  EXPECT_EQ(ChooseFrom(kRow, rule), 0);
  rule.top_k = 4;  // a filter's weight is a sum in turn itself
  EXPECT_EQ(ChooseFrom(kRow, rule), 3);
}

TEST(WholeRow, YieldsEveryTokenInOrder) {
  std::vector<float> row(9000);
  for (int i = 0; i < 9000; ++i) row[i] = static_cast<float>((i * 7919) % 4500);
  WholeRow source;
  source.Reset(row);
  std::optional<Candidate> last = source.Next();
  int count = 1;
  for (std::optional<Candidate> next = source.Next(); next; next = source.Next(), ++count) {
    ASSERT_TRUE(Before(*last, *next));
    last = next;
  }
  EXPECT_EQ(count, 9000);
}

TEST(MergedCandidates, StopsWhereACutListEnds) {
  const std::vector<Candidate> left = {{5.0f, 0}, {3.0f, 1}};
  const std::vector<Candidate> right = {{4.0f, 10}, {2.0f, 11}};
  MergedCandidates merged;
  merged.Add({.candidates = left, .cut = true});
  merged.Add({.candidates = right, .cut = false});
  EXPECT_EQ(merged.Next()->token, 0);
  EXPECT_EQ(merged.Next()->token, 10);
  EXPECT_EQ(merged.Next()->token, 1);
  EXPECT_FALSE(merged.Next().has_value());  // the left rank may have 2.5
  EXPECT_TRUE(merged.truncated());

  merged.Reset();
  merged.Add({.candidates = left, .cut = false});
  merged.Add({.candidates = right, .cut = false});
  for (const int32_t token : {0, 10, 1, 11}) EXPECT_EQ(merged.Next()->token, token);
  EXPECT_FALSE(merged.Next().has_value());
  EXPECT_FALSE(merged.truncated());
}

TEST(TokenChooser, SaysWhenCandidatesDoNotReach) {
  const std::vector<Candidate> head = {{kRow[0], 0}};
  TokenChooser chooser;
  const ChoiceRule rule{.uniform = 0.4, .max = kRow[0], .total = kTotal};
  MergedCandidates merged;
  merged.Add({.candidates = head, .cut = true});
  EXPECT_EQ(chooser.Choose(merged, rule), 0);  // the first half of the interval is certain
  merged.Reset();
  merged.Add({.candidates = head, .cut = true});
  ChoiceRule deep = rule;
  deep.uniform = 0.6;
  EXPECT_EQ(chooser.Choose(merged, deep), std::nullopt);
}

}  // namespace
}  // namespace lockstep
