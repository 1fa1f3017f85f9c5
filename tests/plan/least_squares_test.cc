#include "deploy/plan/least_squares.h"

#include <cmath>

#include "gtest/gtest.h"

namespace lockstep::plan {
namespace {

// y = a exp(b t) at a = 2, b = -0.5.
std::vector<double> Decay(const std::vector<double>& x, double outlier) {
  std::vector<double> out;
  for (double t = 0; t < 5; t += 0.5) {
    out.push_back(x[0] * std::exp(x[1] * t) - 2.0 * std::exp(-0.5 * t));
  }
  out.back() += outlier;
  return out;
}

TEST(LeastSquares, FindsTheCoefficientsOfExactData) {
  const auto x = MinimizeResiduals([](const auto& x) { return Decay(x, 0); }, {1.0, 0.0}, 1.0);
  EXPECT_NEAR(x[0], 2.0, 1e-4);
  EXPECT_NEAR(x[1], -0.5, 1e-4);
}

TEST(LeastSquares, AnOddMeasurementHardlyBendsTheFit) {
  const auto x = MinimizeResiduals([](const auto& x) { return Decay(x, 10); }, {1.0, 0.0}, 0.01);
  EXPECT_NEAR(x[0], 2.0, 0.1);
  EXPECT_NEAR(x[1], -0.5, 0.1);
}

}  // namespace
}  // namespace lockstep::plan
