// Percentiles of what a histogram counted.
#pragma once

#include <optional>

#include "lockstep/v1/generation.pb.h"

namespace lockstep {

// quantile: 0 to 1. As Prometheus's histogram_quantile has it: values are spread evenly over their
// bucket, the first of which begins at zero; of the last, which has no end, only its beginning is
// known. Nothing where nothing was counted, or where it is no histogram.
std::optional<double> HistogramQuantile(const v1::Histogram& histogram, double quantile);

}  // namespace lockstep
