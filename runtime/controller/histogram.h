// How many values were how large, in buckets of fixed bounds: what Prometheus calls a histogram. No
// threads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

class Histogram {
 public:
  // bounds: ascending, not empty; they outlive it.
  explicit Histogram(absl::Span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}

  // A value that equals a bound is below it, as Prometheus has it.
  void Add(double value);
  v1::Histogram Encode() const;

 private:
  absl::Span<const double> bounds_;
  std::vector<uint64_t> counts_;  // [bounds + 1]
  double sum_ = 0;
};

}  // namespace lockstep
