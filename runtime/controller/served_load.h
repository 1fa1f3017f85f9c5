// What was asked of the server and how fast it answered: on average, which a prediction is compared
// with, and how that spreads. No clock, no threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "runtime/controller/histogram.h"

namespace lockstep {

struct ServedLoad {
  int64_t num_outputs = 0;        // that began
  double mean_prompt_tokens = 0;  // computed, not found in the prefix cache
  double mean_output_tokens = 0;
  double mean_requests = 0;  // at the same time, running or waiting, while there were any
  double ttft_ms = 0;        // from acceptance to the first token
  double tpot_ms = 0;        // between tokens of an output
};

// What a planner says of a load; milliseconds.
struct SpeedPrediction {
  double ttft_ms = 0;
  double tpot_ms = 0;
  std::string source;
};
using SpeedPredictor = std::function<std::optional<SpeedPrediction>(const ServedLoad&)>;

class LoadMeter {
 public:
  LoadMeter();

  void Accepted(int64_t num_prompt_tokens);
  // A request is in a step for the first time.
  void Admitted(absl::Duration since_acceptance);
  // num_prompt_tokens: computed for it.
  void FirstToken(absl::Duration since_acceptance, int64_t num_prompt_tokens);
  void NextToken(absl::Duration since_previous);
  void Finished(absl::Duration since_acceptance, int64_t num_output_tokens);
  void StepDone(absl::Duration taken) { step_.Add(absl::ToDoubleSeconds(taken)); }
  // So many requests are there from now on. Times ascend.
  void Present(size_t num_requests, absl::Time now);

  ServedLoad Load() const;
  v1::Measurements Measurements() const;

 private:
  int64_t num_first_ = 0;
  int64_t num_next_ = 0;
  int64_t num_prompt_tokens_ = 0;
  absl::Duration until_first_;
  absl::Duration between_;
  size_t num_present_ = 0;
  absl::Time present_since_ = absl::InfinitePast();
  absl::Duration with_any_;
  absl::Duration requests_times_time_;
  Histogram queue_;  // seconds, as the next ones
  Histogram first_token_;
  Histogram inter_token_;
  Histogram request_;
  Histogram step_;
  Histogram prompt_tokens_;
  Histogram output_tokens_;
};

}  // namespace lockstep
