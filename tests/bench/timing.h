// The clock of the benchmarks, and their median.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace lockstep::bench {

constexpr double kGiga = 1e9;

inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of an even number the upper one.
inline double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep::bench
