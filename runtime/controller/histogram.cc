#include "runtime/controller/histogram.h"

#include <algorithm>

namespace lockstep {

void Histogram::Add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  sum_ += value;
}

v1::Histogram Histogram::Encode() const {
  v1::Histogram message;
  message.mutable_bounds()->Assign(bounds_.begin(), bounds_.end());
  message.mutable_counts()->Assign(counts_.begin(), counts_.end());
  message.set_sum(sum_);
  return message;
}

}  // namespace lockstep
