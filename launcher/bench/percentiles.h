// Summaries of latencies. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

struct Summary {
  int64_t count = 0;
  double mean = 0.0;
  double p50 = 0.0;
  double p90 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};

// The q-th quantile, 0 <= q <= 1, of sorted values by linear interpolation between the closest
// ranks (Hyndman and Fan 1996, type 7, what NumPy's percentile does). 0 for no values.
double Quantile(const std::vector<double>& sorted, double q);

Summary Summarize(std::vector<double> values);

}  // namespace lockstep
