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

Summary Summarize(std::vector<double> values);

}  // namespace lockstep
