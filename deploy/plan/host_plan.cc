#include "deploy/plan/host_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/queue_simulation.h"
#include "kernels/base/status_macros.h"

namespace lockstep::plan {
namespace {

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

SimulatedReplica ReplicaOf(const HostCosts& costs, const HostProfile& profile,
                           const HostLimits& limits) {
  return {.costs = costs,
          .num_kv_blocks = limits.num_kv_blocks,
          .block_size = limits.block_size,
          .max_num_seqs = limits.max_num_seqs,
          .max_batched_tokens = limits.max_batched_tokens,
          .max_model_len = limits.num_kv_blocks * limits.block_size,
          .request_ms = profile.request_ms};
}

// The times of a closed loop. A number of requests between two whole ones lies between theirs.
void FillSimulated(const SimulatedReplica& replica, Load load, Prediction& prediction) {
  const double share = load.concurrency - std::floor(load.concurrency);
  load.concurrency = std::floor(load.concurrency);
  const QueueResult low = SimulateClosedLoop(replica, load);
  load.concurrency += share > 0 ? 1 : 0;
  const QueueResult high = share > 0 ? SimulateClosedLoop(replica, load) : low;
  const auto between = [&](double QueueResult::*time) {
    return (1.0 - share) * low.*time + share * high.*time;
  };
  prediction.ttft_ms = between(&QueueResult::ttft_mean_ms);
  prediction.ttft_p95_ms = between(&QueueResult::ttft_p95_ms);
  prediction.tpot_ms = between(&QueueResult::tpot_mean_ms);
  prediction.tpot_p95_ms = between(&QueueResult::tpot_p95_ms);
}

absl::Status Judge(const HostPlanRequest& request, HostCandidate& candidate,
                   std::string& no_speed) {
  const Architecture& model = request.model.architecture;
  ASSIGN_OR_RETURN(candidate.memory,
                   PlanHostMemory({model, request.weights, request.memory, request.available_bytes,
                                   request.max_model_len},
                                  candidate.layout));
  if (!request.profile) return absl::OkStatus();
  HostLimits limits;
  limits.max_batched_tokens = static_cast<int>(request.memory.max_batched_tokens);
  limits.max_num_seqs = static_cast<int>(request.memory.max_num_seqs);
  limits.block_size = static_cast<int>(request.memory.block_size);
  limits.num_kv_blocks = candidate.memory.num_kv_blocks;
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
  const SimulatedReplica replica = ReplicaOf(costs, deployment.profile, limits);
  const double longest = load.concurrency > 1 ? 1.5 : 1.0;  // times the mean output
  const double tokens = load.input_tokens + longest * load.output_tokens;
  const auto held = static_cast<int64_t>(static_cast<double>(replica.max_model_len) / tokens);
  if (held < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a KV cache of %d tokens holds no request of %.0f", replica.max_model_len, tokens));
  }
  EngineProfile engine;
  engine.max_batched_tokens = limits.max_batched_tokens;
  engine.max_running = limits.max_num_seqs;
  Prediction prediction = Predict(costs, engine, load, held);
  Load admitted = load;
  admitted.concurrency = std::min(
      {load.concurrency, static_cast<double>(held), static_cast<double>(limits.max_num_seqs)});
  FillSimulated(replica, admitted, prediction);
  const double request_ms =
      prediction.ttft_ms + prediction.tpot_ms * std::max(1.0, load.output_tokens - 1);
  prediction.requests_per_s = 1e3 * admitted.concurrency / request_ms;
  prediction.output_tokens_per_s = prediction.requests_per_s * load.output_tokens;
  // The others wait until it is their turn.
  const double turns = std::max(0.0, load.concurrency / admitted.concurrency - 1.0);
  prediction.ttft_ms += turns * request_ms;
  prediction.ttft_p95_ms += turns * request_ms;
  return prediction;
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
