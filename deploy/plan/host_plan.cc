#include "deploy/plan/host_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

std::string BrokenLimit(const HostPlanRequest& request, const Prediction& prediction) {
  if (prediction.saturated && request.arrivals.rate_per_s > 0) {
    return absl::StrFormat("serves %.3g requests/s at most", prediction.requests_per_s);
  }
  if (request.ttft_p95_ms > 0 && prediction.ttft_p95_ms > request.ttft_p95_ms) {
    return absl::StrFormat("TTFT p95 %.0f ms, above %.0f ms", prediction.ttft_p95_ms,
                           request.ttft_p95_ms);
  }
  if (request.tpot_p95_ms > 0 && prediction.tpot_p95_ms > request.tpot_p95_ms) {
    return absl::StrFormat("TPOT p95 %.1f ms, above %.1f ms", prediction.tpot_p95_ms,
                           request.tpot_p95_ms);
  }
  return "";
}

absl::Status PredictInto(const HostDeployment& deployment, const HostPlanRequest& request,
                         const HostLimits& limits, HostCandidate& candidate) {
  const ArrivalPattern& arrivals = request.arrivals;
  if (arrivals.rate_per_s > 0) {
    ASSIGN_OR_RETURN(const HostQueue queue, PredictQueueOnHost(deployment, arrivals, limits));
    candidate.prediction = queue.prediction;
    candidate.queue = queue.queue;
  } else {
    const Load load{arrivals.input_tokens, arrivals.output_tokens, request.concurrency, {}};
    ASSIGN_OR_RETURN(candidate.prediction, PredictOnHost(deployment, load, limits));
  }
  candidate.broken = BrokenLimit(request, *candidate.prediction);
  return absl::OkStatus();
}

absl::Status Judge(const HostPlanRequest& request, HostCandidate& candidate,
                   std::string& no_speed) {
  const Architecture& model = request.model.architecture;
  ASSIGN_OR_RETURN(candidate.memory,
                   PlanHostMemory({model, request.weights, request.memory, request.available_bytes,
                                   request.max_model_len},
                                  candidate.layout));
  const int64_t num_tokens = candidate.memory.num_kv_blocks * request.memory.block_size;
  if (request.needs_max_model_len && num_tokens < request.max_model_len) {
    return absl::ResourceExhaustedError(absl::StrCat("a context of ", request.max_model_len,
                                                     " tokens is longer than the ", num_tokens,
                                                     " for which this host's memory has room"));
  }
  if (!request.profile) return absl::OkStatus();
  HostLimits limits;
  limits.max_batched_tokens = static_cast<int>(request.memory.max_batched_tokens);
  limits.max_num_seqs = static_cast<int>(request.memory.max_num_seqs);
  limits.block_size = static_cast<int>(request.memory.block_size);
  limits.num_kv_blocks = candidate.memory.num_kv_blocks;
  const HostDeployment deployment{model, request.weights, *request.profile, candidate.layout,
                                  candidate.threads_per_rank};
  if (const absl::Status fast = PredictInto(deployment, request, limits, candidate); !fast.ok()) {
    no_speed = std::string(fast.message());
  }
  return absl::OkStatus();
}

// More ranks must be worth it.
bool IsBetter(const HostPlanRequest& request, const HostCandidate& here,
              const HostCandidate& before) {
  if (!here.prediction || !before.prediction) return here.prediction.has_value();
  if (here.broken.empty() != before.broken.empty()) return here.broken.empty();
  if (request.arrivals.rate_per_s == 0) {
    return here.prediction->output_tokens_per_s >
           kWorthMoreRanks * before.prediction->output_tokens_per_s;
  }
  const auto ms = [&](const Prediction& prediction) {
    return prediction.ttft_ms + prediction.tpot_ms * (request.arrivals.output_tokens - 1);
  };
  return kWorthMoreRanks * ms(*here.prediction) < ms(*before.prediction);
}

}  // namespace

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
  std::stable_sort(plan.candidates.begin(), plan.candidates.end(),
                   [](const HostCandidate& a, const HostCandidate& b) {
                     return a.layout.ranks() < b.layout.ranks();
                   });
  for (size_t i = 1; i < plan.candidates.size(); ++i) {
    if (IsBetter(request, plan.candidates[i], plan.answer())) plan.chosen = i;
  }
  return plan;
}

}  // namespace lockstep::plan
