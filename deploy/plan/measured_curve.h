// Curves that were measured at a few points. Pure; any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::plan {

// A message of so many bytes.
struct SizedTime {
  double bytes = 0;
  double us = 0;
};

// The value at `wanted` of points that ascend in `at`: between two by the logarithms of both,
// before the first its value, beyond the last in proportion. At least one point; all above zero.
template <typename Point>
double OnCurve(const std::vector<Point>& curve, double Point::*at, double Point::*value,
               double wanted) {
  if (wanted <= curve.front().*at) return curve.front().*value;
  if (wanted >= curve.back().*at) return curve.back().*value * wanted / (curve.back().*at);
  const auto upper =
      std::upper_bound(curve.begin(), curve.end(), wanted,
                       [&](double number, const Point& point) { return number < point.*at; });
  const Point& a = *(upper - 1);
  const Point& b = *upper;
  const double share = std::log(wanted / (a.*at)) / std::log((b.*at) / (a.*at));
  return a.*value * std::pow((b.*value) / (a.*value), share);
}

}  // namespace lockstep::plan
