#include "deploy/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/held_by_serve.h"
#include "deploy/plan/layout_search.h"
#include "deploy/plan/relaxations.h"
#include "kernels/base/status_macros.h"

namespace lockstep::plan {
namespace {

// By how much a layout that does not hold, with all the replicas that there may be, misses what is
// asked for; at least 1. What does not even fit is further away than what is too slow.
double Shortfall(const PlanRequest& request, const Candidate& candidate) {
  constexpr double kDoesNotFit = 1e9;
  const double replicas = MostReplicas(request, candidate.layout, INT32_MAX);
  const Prediction& speed = candidate.prediction;
  double missed = 1.0;
  switch (candidate.broken) {
    case Constraint::kShape:
      return 2 * kDoesNotFit;
    case Constraint::kWeights:
    case Constraint::kContext:
      return kDoesNotFit;
    case Constraint::kRate:
    case Constraint::kConcurrency:
      missed = request.rate_per_s > 0
                   ? request.rate_per_s / (replicas * speed.requests_per_s)
                   : request.concurrency /
                         (replicas * static_cast<double>(candidate.memory.max_requests));
      break;
    case Constraint::kTtft:
      missed = speed.ttft_p95_ms / request.ttft_p95_ms;
      break;
    case Constraint::kTpot:
      missed = speed.tpot_p95_ms / request.tpot_p95_ms;
      break;
    default:
      break;
  }
  return std::isfinite(missed) ? std::clamp(missed, 1.0, kDoesNotFit) : kDoesNotFit;
}

// Why not fewer GPUs: the answer's own replicas, or what breaks the largest smaller layout; where
// nothing holds, what breaks the layout that is nearest to it.
void FindBinding(Plan& plan) {
  const Candidate* answer = plan.answer();
  if (answer != nullptr && answer->fewest_replicas > 1) {
    plan.binding = answer->replicas_for;
    plan.binding_reason =
        absl::StrFormat("%d replicas, not %d: %s", answer->fewest_replicas,
                        answer->fewest_replicas - 1, ConstraintName(plan.binding));
    return;
  }
  const Candidate* nearest = nullptr;
  for (const Candidate& candidate : plan.candidates) {
    if (&candidate == answer || candidate.broken == Constraint::kShape) continue;
    if (candidate.holds && candidate.fewest_replicas == 1) continue;
    if (answer != nullptr &&
        ReservedGpus(plan.request, {candidate.layout.tp, candidate.layout.pp}) >=
            answer->reserved_gpus) {
      continue;
    }
    const auto rank = [&](const Candidate& each) {
      const double shortfall = answer == nullptr ? Shortfall(plan.request, each) : 0.0;
      return std::make_tuple(-shortfall, each.layout.ranks());
    };
    if (nearest == nullptr || rank(candidate) >= rank(*nearest)) nearest = &candidate;
  }
  if (nearest == nullptr) return;
  const std::string name = absl::StrFormat("tp %d x pp %d", nearest->layout.tp, nearest->layout.pp);
  if (nearest->holds) {
    plan.binding = nearest->replicas_for;
    plan.binding_reason = absl::StrFormat("%s takes %d replicas", name, nearest->fewest_replicas);
  } else {
    plan.binding = nearest->broken;
    plan.binding_reason = absl::StrCat(name, ": ", nearest->reason);
  }
}

absl::Status CheckRange(const char* name, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();  // refuses NaN, too
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %.15g; it must be from %.15g to %.15g", name, value, min, max));
}

}  // namespace

int64_t PlanRequest::longest_request() const {
  return std::max(context, static_cast<int64_t>(std::llround(input_tokens + output_tokens)));
}

double PlanRequest::tpot_band() const {
  return model.architecture.experts ? engine.moe_tpot_band : engine.tpot_band;
}

double PlanRequest::ttft_band() const {
  return model.architecture.experts ? engine.moe_ttft_band : engine.ttft_band;
}

const char* ConstraintName(Constraint constraint) {
  switch (constraint) {
    case Constraint::kNone:
      return "nothing";
    case Constraint::kShape:
      return "the model's shape";
    case Constraint::kWeights:
      return "memory for the weights";
    case Constraint::kContext:
      return "KV memory for the longest request";
    case Constraint::kConcurrency:
      return "KV memory for the requests at the same time";
    case Constraint::kRate:
      return "throughput for the request rate";
    case Constraint::kTtft:
      return "time to first token";
    case Constraint::kTpot:
      return "time per output token";
    case Constraint::kGpus:
      return "the number of GPUs";
  }
  return "?";
}

absl::Status CheckRequest(const PlanRequest& request) {
  RETURN_IF_ERROR(CheckRange("gpus-per-node", request.gpus_per_node, 1, 1024));
  RETURN_IF_ERROR(CheckRange("nodes", request.max_nodes, 1, 4096));
  RETURN_IF_ERROR(CheckRange("input", request.input_tokens, 1, 1e8));
  RETURN_IF_ERROR(CheckRange("output", request.output_tokens, 1, 1e8));
  RETURN_IF_ERROR(CheckRange("concurrency", request.concurrency, 1, 1e7));
  if (request.rate_per_s != 0) {
    RETURN_IF_ERROR(CheckRange("rate", request.rate_per_s, kLowestRate, kHighestRate));
  }
  RETURN_IF_ERROR(CheckRange("ttft-p95", request.ttft_p95_ms, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("tpot-p95", request.tpot_p95_ms, 0, 1e9));
  RETURN_IF_ERROR(CheckRange("utilization", request.memory.utilization, 0.05, 0.99));
  if (request.expert_parallel && !request.model.architecture.experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("expert-parallel: ", request.model.name, " has no experts"));
  }
  const int64_t most = request.model.architecture.max_position_embeddings;
  if (request.context > most) {
    return absl::InvalidArgumentError(absl::StrCat("context ", request.context, " exceeds the ",
                                                   most, " positions of ", request.model.name));
  }
  const double together = request.input_tokens + request.output_tokens;
  if (request.context > 0 && together > static_cast<double>(request.context)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("input %.0f and output %.0f together exceed the context of %d",
                        request.input_tokens, request.output_tokens, request.context));
  }
  if (together > static_cast<double>(most)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("input %.0f and output %.0f together exceed the %d positions of %s",
                        request.input_tokens, request.output_tokens, most, request.model.name));
  }
  const int64_t gpus = int64_t{RanksPerNode(request, std::max(1, request.tp))} * request.max_nodes;
  const int64_t asked = int64_t{std::max(1, request.tp)} * std::max(1, request.pp);
  if (asked > gpus) {
    return absl::InvalidArgumentError(absl::StrCat("tp ", std::max(1, request.tp), " x pp ",
                                                   std::max(1, request.pp), " needs ", asked,
                                                   " GPUs; ", gpus, " are allowed"));
  }
  if (request.tp > 0 || request.pp > 0) {
    RETURN_IF_ERROR(
        CheckModelLayout(request.model.architecture, {.tp = std::max(1, request.tp),
                                                      .pp = std::max(1, request.pp),
                                                      .expert_parallel = request.expert_parallel}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const PlanRequest& request, SimulationBudget budget) {
  RETURN_IF_ERROR(CheckRequest(request));
  Plan plan;
  plan.request = request;
  LayoutSearch search = SearchLayouts(request, budget);
  plan.candidates = std::move(search.candidates);
  plan.chosen = search.chosen;
  plan.queue = search.queue;
  if (plan.answer() != nullptr) plan.not_served = WhyNotServed(request, *plan.answer());
  FindBinding(plan);
  plan.relaxations = FindRelaxations(
      request, plan.answer() == nullptr ? INT32_MAX : plan.answer()->reserved_gpus, budget);
  return plan;
}

}  // namespace lockstep::plan
