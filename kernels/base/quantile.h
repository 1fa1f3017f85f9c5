// What was measured, summarized. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/base/check.h"

namespace lockstep {

// The q-th quantile, 0 <= q <= 1, of sorted values by linear interpolation between the closest
// ranks (Hyndman and Fan 1996, type 7, what NumPy's percentile does). 0 for no values.
inline double Quantile(const std::vector<double>& sorted, double q) {
  LS_CHECK(q >= 0.0 && q <= 1.0) << q;
  if (sorted.empty()) return 0.0;
  const double rank = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - std::floor(rank)) * (sorted[above] - sorted[below]);
}

}  // namespace lockstep
