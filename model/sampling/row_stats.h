// What is to be known of a whole row: its largest logit and the sum of its exponentials.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/base/choice_walk.h"
#include "model/sampling/row_summary.h"

namespace lockstep {

// The statistics of a whole row, from those of its slices.
struct RowStats {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0.0;
};

// terms: scratch.
inline RowStats CombineStats(std::span<const SliceStats> slices, double inverse_temperature,
                             std::vector<double>& terms) {
  RowStats row;
  for (const SliceStats& slice : slices) row.max = std::max(row.max, slice.max);
  terms.clear();
  for (const SliceStats& slice : slices) {
    terms.push_back(SliceWeight(slice.sum, slice.max, row.max, inverse_temperature));
  }
  row.sum = AddNeighbours(terms.data(), static_cast<int>(terms.size()));
  return row;
}

// Natural; of a logit that is -infinity likewise.
inline float LogprobOf(double logit, const RowStats& raw) {
  if (!(logit > -std::numeric_limits<double>::infinity()))
    return -std::numeric_limits<float>::infinity();
  return static_cast<float>(std::min(0.0, logit - raw.max - std::log(raw.sum)));
}

}  // namespace lockstep
