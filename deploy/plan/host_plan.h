// What `serve` will take and reach on the CPUs of this host: memory by the functions that allocate,
// speed by what was calibrated. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/catalog.h"
#include "deploy/plan/formats.h"
#include "deploy/plan/host_costs.h"
#include "deploy/plan/host_profile.h"
#include "deploy/plan/latency.h"
#include "deploy/plan/memory_plan.h"

namespace lockstep::plan {

// Limits of `serve` that its speed depends on.
struct HostLimits {
  int max_batched_tokens = 2048;
  int max_num_seqs = 256;
  int block_size = 16;
  int64_t num_kv_blocks = 0;
};

// Errors as HostCosts::Create; INVALID_ARGUMENT for a request that the cache does not hold.
absl::StatusOr<Prediction> PredictOnHost(const HostDeployment& deployment, const Load& load,
                                         const HostLimits& limits);

struct HostPlanRequest {
  Model model;
  WeightFormat weights;
  MemoryOptions memory;
  int64_t available_bytes = 0;
  int64_t max_model_len = 0;
  int cores = 1;
  Load load;
  int tp = 0;  // 0: any that was measured; without a profile one
  int pp = 0;
  std::optional<HostProfile> profile;
};

struct HostCandidate {
  Layout layout;
  int threads_per_rank = 1;
  HostMemory memory;
  std::optional<Prediction> prediction;  // with a profile
};

struct HostPlan {
  HostPlanRequest request;
  std::vector<HostCandidate> candidates;  // never empty
  size_t chosen = 0;                      // the most tokens per second at the load
  std::string no_speed;                   // why nothing is predicted
  const HostCandidate& answer() const { return candidates[chosen]; }
};

// Errors as PlanHostMemory's when no layout is left.
absl::StatusOr<HostPlan> MakeHostPlan(const HostPlanRequest& request);

std::string HostPlanText(const HostPlan& plan);
std::string HostPlanJson(const HostPlan& plan);

}  // namespace lockstep::plan
