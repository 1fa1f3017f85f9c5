// What `serve` will take and reach on the CPUs of this host: memory by the functions that allocate,
// speed by what was calibrated. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/catalog.h"
#include "deploy/plan/formats.h"
#include "deploy/plan/host_prediction.h"
#include "deploy/plan/host_profile.h"
#include "deploy/plan/memory_plan.h"

namespace lockstep::plan {

struct HostPlanRequest {
  Model model;
  WeightFormat weights;
  MemoryOptions memory;
  int64_t available_bytes = 0;
  int64_t max_model_len = 0;
  bool needs_max_model_len = false;  // of a cache: what has no room for it does not fit
  int cores = 1;
  double concurrency = 1;   // ignored when requests come at a rate
  ArrivalPattern arrivals;  // with the sizes of requests
  double ttft_p95_ms = 0;   // 0: no limit
  double tpot_p95_ms = 0;
  int tp = 0;  // 0: any that was measured; without a profile one
  int pp = 0;
  std::optional<HostProfile> profile;
};

struct HostCandidate {
  Layout layout;
  int threads_per_rank = 1;
  HostMemory memory;
  std::optional<Prediction> prediction;  // with a profile
  std::optional<QueueResult> queue;      // when requests come at a rate
  std::string broken;                    // the limit that does not hold, in one line; or empty
};

struct HostPlan {
  HostPlanRequest request;
  std::vector<HostCandidate> candidates;  // never empty
  size_t chosen = 0;                      // of those that hold, the fastest at the load
  std::string no_speed;                   // why nothing is predicted
  const HostCandidate& answer() const { return candidates[chosen]; }
};

// Errors as PlanHostMemory's when no layout is left.
absl::StatusOr<HostPlan> MakeHostPlan(const HostPlanRequest& request);

std::string HostPlanText(const HostPlan& plan);
std::string HostPlanJson(const HostPlan& plan);

}  // namespace lockstep::plan
