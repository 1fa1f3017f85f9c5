// How long a step may take before its replica counts as stuck: a multiple of what steps took
// lately, in proportion to the tokens it computes. Pure; the core's thread only.
//
// A fixed limit is either longer than an operator wants to wait or shorter than the longest
// prefill. A median rather than a mean: one slow step must not double the limit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace lockstep {

struct StepDeadlineOptions {
  double factor = 20;                          // times the running median
  absl::Duration least = absl::Seconds(5);     // also covers a machine that stutters
  absl::Duration first = absl::Seconds(60);    // before anything was measured
  absl::Duration longest = absl::Minutes(10);  // whatever was measured
};

class StepDeadline {
 public:
  explicit StepDeadline(const StepDeadlineOptions& options) : options_(options) {}

  // A step of num_tokens (>= 1) came back after `took`.
  void Finished(int64_t num_tokens, absl::Duration took);
  // For a step of num_tokens: factor * median time, and in proportion when it has more tokens than
  // the median step; within [least, longest].
  absl::Duration For(int64_t num_tokens) const;

 private:
  static constexpr size_t kWindow = 63;  // steps; odd, so that the median is one of them

  StepDeadlineOptions options_;
  std::array<absl::Duration, kWindow> took_;
  std::array<int64_t, kWindow> num_tokens_{};
  size_t num_finished_ = 0;
  absl::Duration median_took_;
  int64_t median_tokens_ = 1;
};

}  // namespace lockstep
