#include "launcher/bench/percentiles.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/quantile.h"

namespace lockstep {

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
