#include "runtime/controller/served_load.h"

#include <algorithm>

namespace lockstep {
namespace {

double Ratio(double amount, double count) { return count > 0 ? amount / count : 0.0; }

}  // namespace

void LoadMeter::FirstToken(absl::Duration since_acceptance, int64_t num_prompt_tokens) {
  ++num_first_;
  num_prompt_tokens_ += num_prompt_tokens;
  until_first_ += since_acceptance;
}

void LoadMeter::NextToken(absl::Duration since_previous) {
  ++num_next_;
  between_ += since_previous;
}

void LoadMeter::Present(size_t num_requests, absl::Time now) {
  if (num_present_ > 0) {
    const absl::Duration passed = now - present_since_;
    with_any_ += passed;
    requests_times_time_ += static_cast<double>(num_present_) * passed;
  }
  num_present_ = num_requests;
  present_since_ = now;
}

ServedLoad LoadMeter::Load() const {
  const auto outputs = static_cast<double>(num_first_);
  ServedLoad load;
  load.num_outputs = num_first_;
  load.mean_prompt_tokens = Ratio(static_cast<double>(num_prompt_tokens_), outputs);
  load.mean_output_tokens = Ratio(static_cast<double>(num_first_ + num_next_), outputs);
  load.mean_requests =
      Ratio(absl::ToDoubleSeconds(requests_times_time_), absl::ToDoubleSeconds(with_any_));
  load.ttft_ms = Ratio(absl::ToDoubleMilliseconds(until_first_), outputs);
  load.tpot_ms = Ratio(absl::ToDoubleMilliseconds(between_), static_cast<double>(num_next_));
  return load;
}

}  // namespace lockstep
