#include "runtime/controller/histogram.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr double kBounds[] = {1, 2, 4};

TEST(Histogram, NothingAddedIsAllZeros) {
  const v1::Histogram message = Histogram(kBounds).Encode();
  EXPECT_THAT(message.bounds(), ElementsAre(1, 2, 4));
  EXPECT_THAT(message.counts(), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(message.sum(), 0);
}

TEST(Histogram, ABoundBelongsToTheBucketBelow) {
  Histogram histogram(kBounds);
  for (const double value : {-1.0, 0.0, 1.0, 1.5, 2.0, 4.0, 4.1, 100.0}) histogram.Add(value);
  EXPECT_THAT(histogram.Encode().counts(), ElementsAre(3, 2, 1, 2));
  EXPECT_DOUBLE_EQ(histogram.Encode().sum(), 111.6);
}

}  // namespace
}  // namespace lockstep
