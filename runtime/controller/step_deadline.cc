#include "runtime/controller/step_deadline.h"

#include <algorithm>

namespace lockstep {
namespace {

template <typename T, size_t N>
T MedianOfFirst(std::array<T, N> values, size_t count) {
  std::nth_element(values.begin(), values.begin() + count / 2, values.begin() + count);
  return values[count / 2];
}

}  // namespace

void StepDeadline::Finished(int64_t num_tokens, absl::Duration took) {
  took_[num_finished_ % kWindow] = took;
  num_tokens_[num_finished_ % kWindow] = num_tokens;
  ++num_finished_;
  // Once the window is full a median changes slowly: it need not be found at every step.
  if (num_finished_ > kWindow && num_finished_ % 8 != 0) return;
  const size_t count = std::min(num_finished_, kWindow);
  median_took_ = MedianOfFirst(took_, count);
  median_tokens_ = std::max<int64_t>(1, MedianOfFirst(num_tokens_, count));
}

absl::Duration StepDeadline::For(int64_t num_tokens) const {
  if (num_finished_ == 0) return std::min(options_.first, options_.longest);
  const double scale =
      std::max(1.0, static_cast<double>(num_tokens) / static_cast<double>(median_tokens_));
  return std::clamp(median_took_ * (options_.factor * scale), options_.least, options_.longest);
}

}  // namespace lockstep
