#include "model/sampling/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr float kRowNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kNegInf = -std::numeric_limits<float>::infinity();
// Around the vector width, the lanes and the block.
constexpr int kSizes[] = {1, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 4001};

std::vector<float> RandomRow(int size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<float> row(size);
  for (float& value : row) value = normal(random);
  return row;
}

// With NaN behind the end, which must not be read.
std::span<const float> Guarded(std::vector<float>& row) {
  const size_t size = row.size();
  row.resize(size + 64, kRowNan);
  return std::span<const float>(row).first(size);
}

std::vector<Candidate> PlainLargest(std::span<const float> row, int32_t first_token, int count) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] > kNegInf) all.push_back({row[i], first_token + static_cast<int32_t>(i)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.value > b.value; });
  if (all.size() > static_cast<size_t>(count)) all.resize(count);
  return all;
}

void ExpectSame(const std::vector<Candidate>& actual, const std::vector<Candidate>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].value, expected[i].value) << i;
    EXPECT_EQ(actual[i].token, expected[i].token) << i;
  }
}

TEST(LargestOf, FindsMaximumAtLowestIndex) {
  for (const int size : kSizes) {
    std::vector<float> row = RandomRow(size, size);
    row[size / 2] = row[size - 1] = 99.0f;
    const Candidate largest = LargestOf(Guarded(row));
    EXPECT_EQ(largest.value, 99.0f);
    EXPECT_EQ(largest.token, size == 1 ? 0 : size / 2);
  }
}

TEST(LargestOf, IgnoresNanAndSaysWhenNothingIsLeft) {
  EXPECT_EQ(LargestOf(std::vector<float>{kRowNan, -3.0f, kRowNan}).token, 1);
  EXPECT_EQ(LargestOf(std::vector<float>{kRowNan, kNegInf}).token, -1);
  EXPECT_EQ(LargestOf({}).token, -1);
}

TEST(SumOfExps, MatchesDoublePrecision) {
  for (const int size : kSizes) {
    std::vector<float> row = RandomRow(size, size);
    const std::span<const float> guarded = Guarded(row);
    const float max = LargestOf(guarded).value;
    for (const float inverse_temperature : {0.01f, 1.0f, 1.7f, 100.0f}) {
      double expected = 0.0;
      for (const float value : guarded) {
        expected += std::exp((double{value} - double{max}) * inverse_temperature);
      }
      EXPECT_NEAR(SumOfExps(guarded, max, inverse_temperature), expected, 2e-6 * expected)
          << size << " at " << inverse_temperature;
    }
  }
}

TEST(SumOfExps, CountsNanAndMinusInfinityAsZero) {
  const std::vector<float> row = {0.0f, kRowNan, kNegInf, -1e30f};
  EXPECT_EQ(SumOfExps(row, 0.0f, 1.0f), 1.0);
  EXPECT_EQ(SumOfExps(row, kNegInf, 1.0f), 0.0);
}

TEST(SelectLargest, IsTheHeadOfTheSortedRow) {
  std::vector<Candidate> selected;
  for (const int size : kSizes) {
    std::vector<float> row = RandomRow(size, size);
    const std::span<const float> guarded = Guarded(row);
    for (const int count : {1, 2, 20, 64, size}) {
      SelectLargest(guarded, 1000, count, selected);
      ExpectSame(selected, PlainLargest(guarded, 1000, count));
    }
  }
}

TEST(SelectLargest, BreaksTiesByLowerId) {
  std::vector<float> row(5000);
  for (int i = 0; i < 5000; ++i) row[i] = static_cast<float>(i % 3);
  row[17] = kRowNan;
  row[20] = kNegInf;
  std::vector<Candidate> selected;
  for (const int count : {1, 50, 1700, 5000}) {
    SelectLargest(row, 0, count, selected);
    ExpectSame(selected, PlainLargest(row, 0, count));
  }
}

TEST(SelectLargest, TakesAscendingRowsInAnyLength) {
  std::vector<float> row(10000);
  for (int i = 0; i < 10000; ++i) row[i] = static_cast<float>(i);
  std::vector<Candidate> selected;
  SelectLargest(row, 0, 3, selected);
  ExpectSame(selected, {{9999.0f, 9999}, {9998.0f, 9998}, {9997.0f, 9997}});
}

}  // namespace
}  // namespace lockstep
