// What a profile of this host predicts for the load that is served. It is simulated, which may take
// seconds, so a thread of its own does it, for a tenth of the time at most: whoever asks meanwhile
// is told what is known.
#pragma once

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "runtime/controller/served_load.h"
#include "runtime/controller/task_queue.h"

namespace lockstep {

class SpeedForecast {
 public:
  using Done = absl::AnyInvocable<void(v1::GetStatusResponse)>;

  // predict: null where there is no profile.
  explicit SpeedForecast(SpeedPredictor predict) : predict_(std::move(predict)) {}

  // Adds to the status what is predicted for its `served`, and hands it to done: at once, or, where
  // that is not known (any more) and nobody finds it out yet, once it is, on another thread.
  void Complete(v1::GetStatusResponse status, Done done);
  void Stop() { thread_.Stop(); }

 private:
  struct Known {
    ServedLoad load;
    std::optional<SpeedPrediction> prediction;
    absl::Time holds_until;  // whatever is served
  };
  // Unset: it is to be found out, by the caller.
  std::optional<Known> Look(const ServedLoad& load);
  Known FindOut(const ServedLoad& load);

  const SpeedPredictor predict_;
  absl::Mutex mutex_;
  std::optional<Known> known_ ABSL_GUARDED_BY(mutex_);
  bool is_being_found_ ABSL_GUARDED_BY(mutex_) = false;
  TaskThread thread_;
};

}  // namespace lockstep
