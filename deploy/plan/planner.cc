#include "deploy/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/held_by_serve.h"
#include "kernels/base/status_macros.h"

namespace lockstep::plan {
namespace {

constexpr int kMaxTp = 64;

// Fewest GPUs to reserve, then groups inside nodes (what `serve` starts unasked), then the cheapest
// tokens; when a rate says how many those are, the fastest.
bool IsBetter(const PlanRequest& request, const Candidate& a, const Candidate& b) {
  const auto key = [&](const Candidate& c) {
    const double tokens = request.rate_per_s > 0 ? 0.0 : c.output_tokens_per_s;
    return std::make_tuple(c.reserved_gpus, c.tp_across_nodes, -tokens, c.prediction.tpot_ms);
  };
  return key(a) < key(b);
}

std::vector<int> TensorParallelSizes(const PlanRequest& request) {
  if (request.tp > 0) return {request.tp};
  std::vector<int> sizes;
  const int most = std::min(kMaxTp, request.gpus_per_node * request.max_nodes);
  for (int tp = 1; tp <= most; ++tp) {
    const bool fills_nodes = request.gpus_per_node % tp == 0 ||
                             (tp % request.gpus_per_node == 0 && (tp & (tp - 1)) == 0);
    if (fills_nodes) sizes.push_back(tp);
  }
  return sizes;
}

std::vector<int> PipelineSizes(const PlanRequest& request, int tp) {
  if (request.pp > 0) return {request.pp};
  std::vector<int> sizes;
  const int most = request.gpus_per_node * request.max_nodes / tp;
  for (const int pp : {1, 2, 3, 4, 6, 8, 12, 16}) {
    if (pp <= most && pp <= request.model.architecture.num_layers) sizes.push_back(pp);
  }
  return sizes;
}

std::vector<Candidate> JudgeAll(const PlanRequest& request) {
  std::vector<Candidate> candidates;
  for (const int tp : TensorParallelSizes(request)) {
    for (const int pp : PipelineSizes(request, tp)) {
      candidates.push_back(Judge(request, tp, pp));
      // A shape that does not divide does not divide at any pp.
      if (candidates.back().broken == Constraint::kShape) break;
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::make_tuple(a.layout.gpus(), a.layout.tp) <
           std::make_tuple(b.layout.gpus(), b.layout.tp);
  });
  return candidates;
}

std::optional<size_t> Choose(const PlanRequest& request, const std::vector<Candidate>& candidates) {
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].holds) continue;
    if (!best || IsBetter(request, candidates[i], candidates[*best])) best = i;
  }
  return best;
}

// Why not fewer GPUs: the answer's own replicas, or what breaks the largest smaller layout.
void FindBinding(Plan& plan) {
  const Candidate* answer = plan.answer();
  if (answer != nullptr && answer->layout.replicas > 1) {
    plan.binding = answer->replicas_for;
    plan.binding_reason =
        absl::StrFormat("%d replicas, not %d: %s", answer->layout.replicas,
                        answer->layout.replicas - 1, ConstraintName(plan.binding));
    return;
  }
  const Candidate* nearest = nullptr;
  for (const Candidate& candidate : plan.candidates) {
    if (&candidate == answer || candidate.broken == Constraint::kShape) continue;
    if (candidate.holds && candidate.layout.replicas == 1) continue;
    if (answer != nullptr &&
        ReservedGpus(plan.request, candidate.layout.ranks()) >= answer->reserved_gpus) {
      continue;
    }
    if (nearest == nullptr || candidate.layout.ranks() >= nearest->layout.ranks()) {
      nearest = &candidate;
    }
  }
  if (nearest == nullptr) return;
  const std::string name = absl::StrFormat("tp %d x pp %d", nearest->layout.tp, nearest->layout.pp);
  if (nearest->holds) {
    plan.binding = nearest->replicas_for;
    plan.binding_reason = absl::StrFormat("%s takes %d replicas", name, nearest->layout.replicas);
  } else {
    plan.binding = nearest->broken;
    plan.binding_reason = absl::StrCat(name, ": ", nearest->reason);
  }
}

struct Change {
  std::string text;
  PlanRequest request;
};

std::vector<Change> ChangesOf(const PlanRequest& request) {
  std::vector<Change> changes;
  const auto add = [&](std::string text, auto apply) {
    Change change{std::move(text), request};
    change.request.min_replicas = 1;
    if (apply(change.request)) changes.push_back(std::move(change));
  };
  // Beside weights in f32 the cache is in f32, too.
  const bool narrows_kv = request.weights.name == "f32" && request.kv.name == "f32";
  for (const char* weights : {"bf16", "fp8", "int4"}) {
    add(absl::StrCat("--weights ", weights, narrows_kv ? " --kv bf16" : ""),
        [&](PlanRequest& changed) {
          const auto format = FindWeightFormat(weights);
          const bool smaller = format->linear_bytes < changed.weights.linear_bytes;
          if (smaller) changed.weights = *format;
          if (narrows_kv) changed.kv = *FindKvFormat("bf16");
          return smaller;
        });
  }
  add("--kv fp8", [](PlanRequest& changed) {
    const bool smaller = changed.kv.element_bytes > 1.0;
    if (smaller) changed.kv = *FindKvFormat("fp8");
    return smaller;
  });
  add("--utilization 0.95",
      [](PlanRequest& changed) { return std::exchange(changed.memory.utilization, 0.95) < 0.95; });
  if (request.context > request.input_tokens + request.output_tokens) {
    const int64_t half = std::max<int64_t>(
        request.context / 2, std::llround(request.input_tokens + request.output_tokens));
    add(absl::StrCat("--context ", half), [&](PlanRequest& changed) {
      changed.context = half;
      return true;
    });
  }
  if (request.rate_per_s == 0 && request.concurrency > 1) {
    const double half = std::floor(request.concurrency / 2);
    add(absl::StrFormat("--concurrency %.0f", half), [&](PlanRequest& changed) {
      changed.concurrency = half;
      return true;
    });
  }
  if (request.rate_per_s > 0) {
    add(absl::StrFormat("--rate %g/s", request.rate_per_s / 2), [](PlanRequest& changed) {
      changed.rate_per_s /= 2;
      return true;
    });
  }
  if (request.ttft_p95_ms > 0) {
    add(absl::StrFormat("--ttft-p95 %gms", 2 * request.ttft_p95_ms), [](PlanRequest& changed) {
      changed.ttft_p95_ms *= 2;
      return true;
    });
  }
  if (request.tpot_p95_ms > 0) {
    add(absl::StrFormat("--tpot-p95 %gms", 2 * request.tpot_p95_ms), [](PlanRequest& changed) {
      changed.tpot_p95_ms *= 2;
      return true;
    });
  }
  return changes;
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
  RETURN_IF_ERROR(CheckRange("rate", request.rate_per_s, 0, 1e6));
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
  const int64_t gpus = int64_t{request.gpus_per_node} * request.max_nodes;
  const int64_t asked = int64_t{std::max(1, request.tp)} * std::max(1, request.pp);
  if (asked > gpus) {
    return absl::InvalidArgumentError(absl::StrCat("tp ", request.tp, " x pp ", request.pp,
                                                   " needs ", asked, " GPUs; ", gpus,
                                                   " are allowed"));
  }
  if (request.tp > 0 || request.pp > 0) {
    RETURN_IF_ERROR(
        CheckModelLayout(request.model.architecture, {.tp = std::max(1, request.tp),
                                                      .pp = std::max(1, request.pp),
                                                      .expert_parallel = request.expert_parallel}));
  }
  return absl::OkStatus();
}

namespace {

void Search(Plan& plan) {
  plan.candidates = JudgeAll(plan.request);
  plan.chosen = Choose(plan.request, plan.candidates);
}

bool QueueMatters(const PlanRequest& request) {
  return request.rate_per_s > 0 && (request.ttft_p95_ms > 0 || request.tpot_p95_ms > 0);
}

// Replays the load against the answer and adds replicas until the limits hold there, too, or
// `enough` GPUs are taken.
void SearchWithQueue(Plan& plan, int enough = INT32_MAX) {
  constexpr int kMaxTries = 8;
  Search(plan);
  for (int i = 0; i < kMaxTries && plan.answer() != nullptr; ++i) {
    if (plan.answer()->reserved_gpus >= enough) return;
    const PlanRequest& now = plan.request;
    plan.queue = SimulateReplica(
        now, *plan.answer(),
        ArrivalsOfReplica({now.trace, now.rate_per_s, now.input_tokens, now.output_tokens},
                          plan.answer()->layout.replicas));
    const PlanRequest& request = plan.request;
    const bool holds =
        plan.queue->is_steady &&
        (request.ttft_p95_ms == 0 || plan.queue->ttft_p95_ms <= request.ttft_p95_ms) &&
        (request.tpot_p95_ms == 0 || plan.queue->tpot_p95_ms <= request.tpot_p95_ms);
    if (holds) return;
    plan.request.min_replicas = plan.answer()->layout.replicas + 1;
    Search(plan);
  }
}

// The first few of them, as many as are shown, with the replicas that a simulated queue asks for;
// simulating all would take seconds.
void KeepThoseThatHoldInAQueue(int now,
                               std::vector<std::pair<Relaxation, const Change*>>& relaxations) {
  constexpr size_t kMost = 3;
  std::vector<std::pair<Relaxation, const Change*>> kept;
  for (auto& [relaxation, change] : relaxations) {
    if (kept.size() == kMost) break;
    Plan changed;
    changed.request = change->request;
    SearchWithQueue(changed, now);
    const Candidate* answer = changed.answer();
    if (answer == nullptr || answer->reserved_gpus >= now) continue;
    relaxation.gpus = answer->reserved_gpus;
    relaxation.usd_per_hour = answer->usd_per_hour;
    relaxation.not_served = WhyNotServed(changed.request, *answer);
    kept.emplace_back(std::move(relaxation), change);
  }
  relaxations = std::move(kept);
}

// Those that need fewer GPUs than the answer (or make one possible): first those that `serve` can
// follow, the smallest plan first; the order of ChangesOf decides among equals: what costs no
// quality of service comes first.
void FindRelaxations(Plan& plan) {
  const int now = plan.answer() == nullptr ? INT32_MAX : plan.answer()->reserved_gpus;
  std::vector<Change> changes = ChangesOf(plan.request);
  std::vector<std::pair<Relaxation, const Change*>> found;
  for (const Change& change : changes) {
    const std::vector<Candidate> candidates = JudgeAll(change.request);
    const auto best = Choose(change.request, candidates);
    if (!best || candidates[*best].reserved_gpus >= now) continue;
    const Candidate& smaller = candidates[*best];
    found.push_back({{change.text, smaller.reserved_gpus, smaller.usd_per_hour,
                      WhyNotServed(change.request, smaller)},
                     &change});
  }
  const auto comes_before = [](const auto& a, const auto& b) {
    return std::make_tuple(!a.first.not_served.empty(), a.first.gpus) <
           std::make_tuple(!b.first.not_served.empty(), b.first.gpus);
  };
  std::stable_sort(found.begin(), found.end(), comes_before);
  if (QueueMatters(plan.request)) KeepThoseThatHoldInAQueue(now, found);
  std::stable_sort(found.begin(), found.end(), comes_before);
  for (auto& [relaxation, change] : found) plan.relaxations.push_back(std::move(relaxation));
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request));
  Plan plan;
  plan.request = request;
  if (request.rate_per_s > 0) {
    SearchWithQueue(plan);
  } else {
    Search(plan);
  }
  if (plan.answer() != nullptr) plan.not_served = WhyNotServed(plan.request, *plan.answer());
  FindBinding(plan);
  FindRelaxations(plan);
  return plan;
}

}  // namespace lockstep::plan
