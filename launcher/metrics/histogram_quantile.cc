#include "launcher/metrics/histogram_quantile.h"

namespace lockstep {

std::optional<double> HistogramQuantile(const v1::Histogram& histogram, double quantile) {
  const int num_bounds = histogram.bounds_size();
  if (num_bounds == 0 || histogram.counts_size() != num_bounds + 1) return std::nullopt;
  double total = 0;
  for (const uint64_t count : histogram.counts()) total += static_cast<double>(count);
  if (total == 0) return std::nullopt;
  const double rank = quantile * total;
  double before = 0;
  for (int i = 0; i < num_bounds; ++i) {
    const auto count = static_cast<double>(histogram.counts(i));
    if (count > 0 && before + count >= rank) {
      const double begin = i == 0 ? 0 : histogram.bounds(i - 1);
      return begin + (histogram.bounds(i) - begin) * (rank - before) / count;
    }
    before += count;
  }
  return histogram.bounds(num_bounds - 1);
}

}  // namespace lockstep
