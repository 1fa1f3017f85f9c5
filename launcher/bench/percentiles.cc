#include "launcher/bench/percentiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/check.h"

namespace lockstep {

double Quantile(const std::vector<double>& sorted, double q) {
  LS_CHECK(q >= 0.0 && q <= 1.0) << q;
  if (sorted.empty()) return 0.0;
  const double rank = q * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - std::floor(rank)) * (sorted[above] - sorted[below]);
}

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  Summary summary;
  summary.count = static_cast<int64_t>(values.size());
  summary.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  summary.p50 = Quantile(values, 0.50);
  summary.p90 = Quantile(values, 0.90);
  summary.p95 = Quantile(values, 0.95);
  summary.p99 = Quantile(values, 0.99);
  summary.max = values.back();
  return summary;
}

}  // namespace lockstep
