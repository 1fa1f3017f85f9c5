#include "runtime/controller/served_load.h"

#include <algorithm>

namespace lockstep {
namespace {

// Seconds: from a request that waits for nothing and has a tiny model to one that waits in a long
// queue for a long answer.
constexpr double kWaits[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
                             1,     2,     5,     10,   20,   50,   100, 200, 500};
// Seconds a step takes, and a token: closer together, as limits are set there.
constexpr double kSteps[] = {0.0002, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01,
                             0.012,  0.015,  0.02,  0.025, 0.03,  0.04,  0.05,  0.06,  0.08,  0.1,
                             0.15,   0.2,    0.3,   0.5,   1,     2,     5,     10};
constexpr double kTokens[] = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                              2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

double Ratio(double amount, double count) { return count > 0 ? amount / count : 0.0; }

}  // namespace

LoadMeter::LoadMeter()
    : queue_(kWaits),
      first_token_(kWaits),
      inter_token_(kSteps),
      request_(kWaits),
      step_(kSteps),
      prompt_tokens_(kTokens),
      output_tokens_(kTokens) {}

void LoadMeter::Accepted(int64_t num_prompt_tokens) {
  prompt_tokens_.Add(static_cast<double>(num_prompt_tokens));
}

void LoadMeter::Admitted(absl::Duration since_acceptance) {
  queue_.Add(absl::ToDoubleSeconds(since_acceptance));
}

void LoadMeter::Finished(absl::Duration since_acceptance, int64_t num_output_tokens) {
  request_.Add(absl::ToDoubleSeconds(since_acceptance));
  output_tokens_.Add(static_cast<double>(num_output_tokens));
}

void LoadMeter::FirstToken(absl::Duration since_acceptance, int64_t num_prompt_tokens) {
  ++num_first_;
  num_prompt_tokens_ += num_prompt_tokens;
  until_first_ += since_acceptance;
  first_token_.Add(absl::ToDoubleSeconds(since_acceptance));
}

void LoadMeter::NextToken(absl::Duration since_previous) {
  ++num_next_;
  between_ += since_previous;
  inter_token_.Add(absl::ToDoubleSeconds(since_previous));
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

v1::Measurements LoadMeter::Measurements() const {
  v1::Measurements measured;
  *measured.mutable_queue_seconds() = queue_.Encode();
  *measured.mutable_time_to_first_token_seconds() = first_token_.Encode();
  *measured.mutable_inter_token_seconds() = inter_token_.Encode();
  *measured.mutable_request_seconds() = request_.Encode();
  *measured.mutable_prompt_tokens() = prompt_tokens_.Encode();
  *measured.mutable_output_tokens() = output_tokens_.Encode();
  *measured.mutable_step_seconds() = step_.Encode();
  return measured;
}

}  // namespace lockstep
