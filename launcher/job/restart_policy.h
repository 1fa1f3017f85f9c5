// How often a lost job is started again, and how soon. Pure; the caller tells the time.
#pragma once

#include <deque>
#include <optional>

#include "absl/time/time.h"

namespace lockstep {

struct RestartLimits {
  int max_restarts = 5;  // within the window; 0 = never
  absl::Duration window = absl::Minutes(5);
};

class RestartPolicy {
 public:
  explicit RestartPolicy(const RestartLimits& limits) : limits_(limits) {}

  // The job was lost. How long to wait before the next start; nullopt: it is a crash loop, give up.
  // A job that had served starts again at once; one that died before that, a little later each
  // time.
  std::optional<absl::Duration> OnLoss(absl::Time now, bool had_served);

  const RestartLimits& limits() const { return limits_; }
  int num_recent() const { return static_cast<int>(restarts_.size()); }

 private:
  const RestartLimits limits_;
  std::deque<absl::Time> restarts_;  // within the window
  int num_without_serving_ = 0;
};

}  // namespace lockstep
