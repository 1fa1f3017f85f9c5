// How often a lost job is started again, and how soon. Pure; the caller tells the time.
//
// Two bounds: of restarts within a window, for jobs that serve and are lost again, and of starts in
// a row that never came to serve, which take as long as a model's loading takes: minutes, of which
// no window tells few from many.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace lockstep {

struct RestartLimits {
  int max_restarts = 5;  // within the window, or in a row without serving; 0 = never
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
  // Why OnLoss gave up: "5 restarts within 5m".
  std::string Exhausted() const;

 private:
  const RestartLimits limits_;
  std::deque<absl::Time> restarts_;  // within the window
  int num_without_serving_ = 0;      // starts in a row, up to the last loss
};

}  // namespace lockstep
