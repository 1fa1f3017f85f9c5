// How fast ranks on the CPUs of a calibrated host answer a load, by the engine's own scheduler.
// Pure; any thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "deploy/plan/arrivals.h"
#include "deploy/plan/host_costs.h"
#include "deploy/plan/latency.h"
#include "deploy/plan/queue_simulation.h"

namespace lockstep::plan {

// Limits of `serve` that its speed depends on.
struct HostLimits {
  int max_batched_tokens = 2048;
  int max_num_seqs = 256;
  int block_size = 16;
  int64_t num_kv_blocks = 0;
};

// What tests/bench/plan_accuracy found: most measurements lie within these shares of what is
// predicted from a calibration of the same minute (README).
constexpr double kHostTpotBand = 0.15;
constexpr double kHostTtftBand = 0.25;

// So many requests all the time. Errors as HostCosts::Create; INVALID_ARGUMENT for requests that
// the cache does not hold.
absl::StatusOr<Prediction> PredictOnHost(const HostDeployment& deployment, const Load& load,
                                         const HostLimits& limits);

// Requests that come when they come; saturated when they come faster than they leave.
struct HostQueue {
  Prediction prediction;
  QueueResult queue;
};
absl::StatusOr<HostQueue> PredictQueueOnHost(const HostDeployment& deployment,
                                             const ArrivalPattern& arrivals,
                                             const HostLimits& limits);

}  // namespace lockstep::plan
