#include "kernels/base/choice_walk.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(PortableExp, IsWithinTwoUlp) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform(-700.0, 0.0);
  for (int i = 0; i < 20000; ++i) {
    const double x = i < 10000 ? uniform(random) : uniform(random) / 700.0;
    EXPECT_NEAR(PortableExp(x) / std::exp(x), 1.0, 5e-16) << x;
  }
  EXPECT_EQ(PortableExp(0.0), 1.0);
  EXPECT_EQ(PortableExp(-1e9), 0.0);
  EXPECT_EQ(PortableExp(-std::numeric_limits<double>::infinity()), 0.0);
}

TEST(AddNeighbours, IsOneTreeWhateverTheNumberOfRanks) {
  double terms[] = {1e16, 1.0, -1e16, 1.0, 3.0};
  EXPECT_EQ(AddNeighbours(terms, 5), ((1e16 + 1.0) + (-1e16 + 1.0)) + 3.0);
  double one[] = {7.0};
  EXPECT_EQ(AddNeighbours(one, 1), 7.0);
}

TEST(SliceWeight, IsNothingForASliceWithoutNumbers) {
  const double nothing = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(SliceWeight(0.0, nothing, nothing, 1.0), 0.0);
  EXPECT_EQ(SliceWeight(0.0, nothing, 2.0, 1.0), 0.0);
  EXPECT_EQ(SliceWeight(3.0, 2.0, 2.0, 0.5), 3.0);
}

}  // namespace
}  // namespace lockstep
