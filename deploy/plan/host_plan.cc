#include "deploy/plan/host_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep::plan {
namespace {

// The rest of the running step, and one: plans run ahead of results.
constexpr double kStepsAhead = 1.5;
constexpr double kWorthMoreRanks = 1.05;  // times the throughput: predictions are no nearer

int MostRanks(const HostPlanRequest& request) {
  int most = 1;
  if (!request.profile) return most;
  for (const RankSpeed& speed : request.profile->speeds) most = std::max(most, speed.ranks());
  return most;
}

std::vector<int> Sizes(int wanted, int most) {
  if (wanted > 0) return {wanted};
  std::vector<int> sizes;
  for (int size = 1; size <= most; size *= 2) sizes.push_back(size);
  return sizes;
}

std::vector<Layout> LayoutsOf(const HostPlanRequest& request) {
  const int most = MostRanks(request);
  std::vector<Layout> layouts;
  for (const int tp : Sizes(request.tp, most)) {
    for (const int pp : Sizes(request.pp, most)) {
      const bool is_asked_for = request.tp > 0 && request.pp > 0;
      if (is_asked_for || tp * pp <= std::max({most, request.tp, request.pp})) {
        layouts.push_back({.tp = tp, .pp = pp});
      }
    }
  }
  return layouts;
}

absl::Status Judge(const HostPlanRequest& request, HostCandidate& candidate,
                   std::string& no_speed) {
  const Architecture& model = request.model.architecture;
  ASSIGN_OR_RETURN(candidate.memory,
                   PlanHostMemory({model, request.weights, request.memory, request.available_bytes,
                                   request.max_model_len},
                                  candidate.layout));
  if (!request.profile) return absl::OkStatus();
  const double tokens = request.load.input_tokens + request.load.output_tokens;
  HostLimits limits;
  limits.max_batched_tokens = static_cast<int>(request.memory.max_batched_tokens);
  limits.max_num_seqs = static_cast<int>(request.memory.max_num_seqs);
  limits.max_requests = static_cast<int64_t>(
      static_cast<double>(candidate.memory.num_kv_blocks * request.memory.block_size) / tokens);
  auto prediction = PredictOnHost(
      {model, request.weights, *request.profile, candidate.layout, candidate.threads_per_rank},
      request.load, limits);
  if (prediction.ok()) {
    candidate.prediction = *prediction;
  } else {
    no_speed = std::string(prediction.status().message());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Prediction> PredictOnHost(const HostDeployment& deployment, const Load& load,
                                         const HostLimits& limits) {
  ASSIGN_OR_RETURN(const HostCosts costs, HostCosts::Create(deployment));
  EngineProfile engine;
  engine.name = "lockstep";
  engine.source = deployment.profile.source();
  engine.request_ms = deployment.profile.request_ms;
  engine.steps_ahead = kStepsAhead;
  engine.max_batched_tokens = limits.max_batched_tokens;
  engine.max_running = limits.max_num_seqs;
  return Predict(costs, engine, load, std::max<int64_t>(1, limits.max_requests));
}

absl::StatusOr<HostPlan> MakeHostPlan(const HostPlanRequest& request) {
  HostPlan plan;
  plan.request = request;
  if (!request.profile) plan.no_speed = "nothing was calibrated";
  absl::Status failed;
  for (const Layout& layout : LayoutsOf(request)) {
    HostCandidate candidate;
    candidate.layout = layout;
    candidate.threads_per_rank = std::max(1, request.cores / layout.ranks());
    const absl::Status judged = Judge(request, candidate, plan.no_speed);
    if (judged.ok()) {
      plan.candidates.push_back(candidate);
    } else if (failed.ok()) {
      failed = judged;
    }
  }
  if (plan.candidates.empty()) return failed;
  // Ascending in ranks, of which more must be worth it.
  std::stable_sort(plan.candidates.begin(), plan.candidates.end(),
                   [](const HostCandidate& a, const HostCandidate& b) {
                     return a.layout.ranks() < b.layout.ranks();
                   });
  for (size_t i = 1; i < plan.candidates.size(); ++i) {
    const auto& best = plan.answer().prediction;
    const auto& here = plan.candidates[i].prediction;
    if (!here) continue;
    if (!best || here->output_tokens_per_s > kWorthMoreRanks * best->output_tokens_per_s) {
      plan.chosen = i;
    }
  }
  return plan;
}

}  // namespace lockstep::plan
