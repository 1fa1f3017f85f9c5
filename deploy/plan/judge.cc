// One layout against a request: memory first, then as many replicas as load and limits need.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "deploy/plan/gpu_calibration.h"
#include "deploy/plan/held_by_serve.h"
#include "deploy/plan/planner.h"
#include "deploy/plan/replica_queue.h"
#include "deploy/plan/roofline.h"
#include "deploy/plan/units.h"

namespace lockstep::plan {
namespace {

// Limits as the launch command sets them (with --rate it may allow more sequences); requests of one
// replica, as if there were no others.
MemoryOptions OptionsOf(const PlanRequest& request) {
  MemoryOptions options = request.memory;
  options.by_serve = request.engine.name == kOwnEngine;
  options.max_batched_tokens = request.engine.max_batched_tokens;
  options.max_model_len = request.longest_request();
  if (options.by_serve && request.rate_per_s == 0) {
    const double requests = std::min<double>(kMostSequences, std::ceil(request.concurrency));
    options.max_num_seqs = std::max(options.max_num_seqs, static_cast<int64_t>(requests));
  }
  return options;
}

double InputP95(const std::vector<Arrival>& trace) {
  std::vector<int64_t> tokens;
  for (const Arrival& arrival : trace) tokens.push_back(arrival.input_tokens);
  const auto at = tokens.begin() + (std::ssize(tokens) - 1) * 95 / 100;
  std::nth_element(tokens.begin(), at, tokens.end());
  return static_cast<double>(*at);
}

void Break(Candidate& candidate, Constraint constraint, std::string reason) {
  candidate.holds = false;
  candidate.broken = constraint;
  candidate.reason = std::move(reason);
}

Constraint LimitBroken(const PlanRequest& request, const Prediction& prediction) {
  if (request.ttft_p95_ms > 0 && prediction.ttft_p95_ms > request.ttft_p95_ms) {
    return Constraint::kTtft;
  }
  if (request.tpot_p95_ms > 0 && prediction.tpot_p95_ms > request.tpot_p95_ms) {
    return Constraint::kTpot;
  }
  return Constraint::kNone;
}

// A model over one kind of replica; asked with more and more of them.
class ReplicaJudge {
 public:
  ReplicaJudge(const PlanRequest& request, const Layout& layout, int64_t max_requests)
      : request_(request),
        deployment_{request.model.architecture,
                    request.weights,
                    request.kv,
                    request.policy,
                    request.gpu,
                    request.engine,
                    layout,
                    RanksPerNode(request, layout.tp)},
        roofline_(deployment_),
        max_requests_(max_requests) {}

  // What breaks with so many replicas; fills prediction and load.
  Constraint Try(int replicas, Candidate& candidate) const {
    if (request_.rate_per_s > 0) {
      const double rate = request_.rate_per_s / replicas;
      const auto concurrency =
          ConcurrencyAtRate(roofline_, request_.engine, UsualLoad(), max_requests_, rate);
      candidate.load_per_replica = concurrency.value_or(static_cast<double>(max_requests_));
      candidate.prediction = PredictAt(candidate.load_per_replica);
      if (!concurrency) return MoreKvHelps() ? Constraint::kConcurrency : Constraint::kRate;
      // Requests beyond the rate do not arrive.
      candidate.prediction.requests_per_s = rate;
      candidate.prediction.output_tokens_per_s = rate * request_.output_tokens;
      candidate.output_tokens_per_s = request_.rate_per_s * request_.output_tokens;
    } else {
      candidate.load_per_replica = std::ceil(request_.concurrency / replicas);
      candidate.prediction = PredictAt(candidate.load_per_replica);
      candidate.output_tokens_per_s = replicas * MeanTokensPerSecond(replicas, candidate);
      if (candidate.prediction.saturated) return Constraint::kConcurrency;
    }
    // The quantiles of a trace are not those of its mean request.
    return request_.trace.empty() ? LimitBroken(request_, candidate.prediction) : Constraint::kNone;
  }

  // What a request sees that meets no other one.
  Prediction Alone(double input_tokens) const {
    Load load;
    load.input_tokens = input_tokens;
    load.output_tokens = 2;
    return Predict(roofline_, request_.engine, load, max_requests_);
  }

  Prediction PredictAt(double concurrency) const {
    Load load = UsualLoad();
    load.concurrency = concurrency;
    return Predict(roofline_, request_.engine, load, max_requests_);
  }

 private:
  // Whether a replica that is overrun would serve more, held its cache more requests.
  bool MoreKvHelps() const {
    Load load = UsualLoad();
    const auto served = [&](int64_t num_requests) {
      load.concurrency = static_cast<double>(num_requests);
      return Predict(roofline_, request_.engine, load, num_requests).requests_per_s;
    };
    return served(2 * max_requests_) > 1.05 * served(max_requests_);
  }

  Load UsualLoad() const {
    Load load;
    load.input_tokens = request_.input_tokens;
    load.output_tokens = request_.output_tokens;
    load.arrives = request_.rate_per_s > 0;
    return load;
  }

  // Of replicas that have the fullest one's load, and those that have one request less.
  double MeanTokensPerSecond(int replicas, const Candidate& candidate) const {
    const double fewer = candidate.load_per_replica - 1.0;
    const double share = candidate.load_per_replica - request_.concurrency / replicas;
    const double most = candidate.prediction.output_tokens_per_s;
    if (share <= 0) return most;
    const double less = fewer > 0 ? PredictAt(fewer).output_tokens_per_s : 0.0;
    return (1.0 - share) * most + share * less;
  }

  const PlanRequest& request_;
  const Deployment deployment_;
  const Roofline roofline_;
  const int64_t max_requests_;
};

// How many may run on average. Those that are there all the time must fit with all their tokens.
// Those that come and go are at all points of their way, but are more at times (Poisson): all but
// five of a hundred times they must fit, or many wait and give way to each other.
int64_t MostRunning(const PlanRequest& request, const MemoryPlan& memory) {
  int64_t most = std::max<int64_t>(1, memory.max_requests);
  if (request.rate_per_s > 0) {
    const auto held = static_cast<double>(memory.max_running);
    most = std::max(most, static_cast<int64_t>(held - kP95Deviations * std::sqrt(held)));
  }
  return most;
}

void BreakMemory(const PlanRequest& request, Candidate& candidate) {
  const StageMemory& stage = candidate.memory.fullest();
  if (stage.kv_budget <= 0 || !candidate.memory.fits()) {
    Break(candidate, Constraint::kWeights,
          absl::StrFormat(
              "stage %d needs %s of weights and %s beside them, %s", stage.stage,
              BinarySize(stage.weights.total()), BinarySize(stage.fixed() - stage.weights.total()),
              stage.kv_budget < 0 ? BinarySize(-stage.kv_budget) + " more than a GPU has"
                                  : BinarySize(stage.kv_budget) + " are left: no KV block"));
  } else if (candidate.memory.max_request_tokens < request.longest_request()) {
    Break(candidate, Constraint::kContext,
          absl::StrFormat("%s for KV hold %d tokens of one request, %d are asked for",
                          BinarySize(stage.kv_budget), candidate.memory.max_request_tokens,
                          request.longest_request()));
  }
}

// What no queue could mend: requests that are too slow where nothing else runs.
void BreakSlowRequests(const PlanRequest& request, const ReplicaJudge& judge,
                       Candidate& candidate) {
  if (request.trace.empty()) return;
  const double tokens = InputP95(request.trace);
  candidate.prediction = judge.Alone(tokens);
  const auto check = [&](Constraint constraint, const char* name, double alone_ms,
                         double limit_ms) {
    if (limit_ms == 0 || alone_ms <= limit_ms || candidate.broken != Constraint::kNone) return;
    Break(candidate, constraint,
          absl::StrFormat("%s %.1f ms of a request alone, of %.0f tokens (5 %% have more), above "
                          "%.1f ms",
                          name, alone_ms, tokens, limit_ms));
  };
  check(Constraint::kTtft, "TTFT", candidate.prediction.ttft_ms, request.ttft_p95_ms);
  check(Constraint::kTpot, "TPOT", candidate.prediction.tpot_ms, request.tpot_p95_ms);
}

std::string BrokenReason(const PlanRequest& request, const Candidate& candidate,
                         Constraint constraint) {
  const Prediction& prediction = candidate.prediction;
  switch (constraint) {
    case Constraint::kConcurrency:
      if (request.rate_per_s > 0) {
        return absl::StrFormat(
            "KV for %d requests that come and go, which serves %.3g requests/s per replica",
            MostRunning(request, candidate.memory), prediction.requests_per_s);
      }
      return absl::StrFormat("KV for %d of %.0f requests per replica",
                             candidate.memory.max_requests, candidate.load_per_replica);
    case Constraint::kRate:
      return absl::StrFormat("serves %.3g requests/s per replica at most",
                             prediction.requests_per_s);
    case Constraint::kTtft:
      return absl::StrFormat("TTFT p95 %.0f ms, above %.0f ms", prediction.ttft_p95_ms,
                             request.ttft_p95_ms);
    case Constraint::kTpot:
      return absl::StrFormat("TPOT p95 %.1f ms, above %.1f ms", prediction.tpot_p95_ms,
                             request.tpot_p95_ms);
    default:
      return ConstraintName(constraint);
  }
}

void FillPrice(const PlanRequest& request, Candidate& candidate) {
  if (!request.usd_per_gpu_hour) return;
  candidate.usd_per_hour = candidate.reserved_gpus * *request.usd_per_gpu_hour;
  const double tokens_per_hour = 3600.0 * candidate.output_tokens_per_s;
  if (tokens_per_hour > 0) {
    candidate.usd_per_million_tokens = *candidate.usd_per_hour / tokens_per_hour * 1e6;
  }
}

// Of nodes that are taken whole none lies idle where it would speed up those who ask all the time;
// at a rate no more comes than is asked for.
int AsManyAsArePaidFor(const PlanRequest& request, Layout layout, int replicas) {
  layout.replicas = replicas;
  if (request.rate_per_s > 0) return replicas;
  const int most = MostReplicas(request, layout, ReservedGpus(request, layout));
  return replicas <= kMostServedReplicas ? std::clamp(most, replicas, kMostServedReplicas)
                                         : replicas;
}

// The fewest replicas that hold, at least `fewest`, by doubling and halving: more never hold less.
// Then as many as are paid for.
void FindReplicas(const PlanRequest& request, const ReplicaJudge& judge, int fewest,
                  Candidate& candidate) {
  const int most = std::max(1, MostReplicas(request, candidate.layout, INT32_MAX));
  int good = std::clamp(fewest, 1, most);
  Constraint broken = judge.Try(good, candidate);
  int bad = good - 1;
  // What all GPUs together do not hold needs no search.
  if (broken != Constraint::kNone && judge.Try(most, candidate) != Constraint::kNone) {
    bad = most - 1;
    good = most;
    broken = Constraint::kGpus;
  }
  while (broken != Constraint::kNone && good < most) {
    bad = good;
    candidate.replicas_for = broken;
    good = std::min(most, 2 * good);
    broken = judge.Try(good, candidate);
  }
  while (broken == Constraint::kNone && good - bad > 1) {
    const int middle = bad + (good - bad) / 2;
    const Constraint there = judge.Try(middle, candidate);
    if (there != Constraint::kNone) candidate.replicas_for = there;
    (there == Constraint::kNone ? good : bad) = middle;
  }
  candidate.fewest_replicas = good;
  if (broken == Constraint::kNone) good = AsManyAsArePaidFor(request, candidate.layout, good);
  broken = judge.Try(good, candidate);
  candidate.layout.replicas = good;
  candidate.holds = broken == Constraint::kNone;
  if (!candidate.holds) {
    std::string reason = BrokenReason(request, candidate, broken);
    candidate.layout.replicas = 1;
    Break(candidate, broken,
          good > 1 ? absl::StrFormat("even with %d replicas: %s", good, reason) : reason);
  }
}

}  // namespace

int RanksPerNode(const PlanRequest& request, int tp) {
  const int gpus = request.gpus_per_node;
  return tp <= gpus ? gpus - gpus % tp : gpus;
}

int NumNodes(const PlanRequest& request, const Layout& layout) {
  const int per_node = RanksPerNode(request, layout.tp);
  return (layout.gpus() + per_node - 1) / per_node;
}

int ReservedGpus(const PlanRequest& request, const Layout& layout) {
  const int nodes = NumNodes(request, layout);
  return nodes == 1 ? layout.gpus() : nodes * request.gpus_per_node;
}

int MostReplicas(const PlanRequest& request, const Layout& layout, int most_gpus) {
  const int per_node = RanksPerNode(request, layout.tp);
  const int nodes = std::min(request.max_nodes, most_gpus / request.gpus_per_node);
  const int64_t ranks = nodes == 0 ? std::min(most_gpus, per_node) : int64_t{nodes} * per_node;
  return static_cast<int>(ranks / layout.ranks());
}

Prediction PredictReplica(const PlanRequest& request, const Candidate& candidate,
                          double concurrency) {
  return ReplicaJudge(request, candidate.layout, MostRunning(request, candidate.memory))
      .PredictAt(concurrency);
}

Candidate Judge(const PlanRequest& request, int tp, int pp, int fewest_replicas) {
  Candidate candidate;
  candidate.layout = {
      .tp = tp, .pp = pp, .replicas = 1, .expert_parallel = request.expert_parallel};
  const absl::Status shape = CheckModelLayout(request.model.architecture, candidate.layout);
  if (!shape.ok()) {
    const std::string message(shape.message());
    Break(candidate, Constraint::kShape, message.substr(0, message.find(';')));
    return candidate;
  }
  candidate.tp_across_nodes = tp > std::max(request.gpus_per_node, request.gpu.link_gpus);
  candidate.memory = PlanMemory(
      {request.model.architecture, request.weights, request.kv, request.policy, OptionsOf(request),
       std::llround(request.gpu.memory_gib * 0x1p30),
       std::llround(request.input_tokens + request.output_tokens), RanksPerNode(request, tp),
       std::llround(request.input_tokens + request.output_tokens / 2)},
      candidate.layout);
  BreakMemory(request, candidate);
  if (candidate.broken == Constraint::kNone) {
    const ReplicaJudge judge(request, candidate.layout, MostRunning(request, candidate.memory));
    BreakSlowRequests(request, judge, candidate);
    if (candidate.broken == Constraint::kNone) {
      FindReplicas(request, judge, fewest_replicas, candidate);
    }
  }
  candidate.nodes = NumNodes(request, candidate.layout);
  candidate.reserved_gpus = ReservedGpus(request, candidate.layout);
  FillPrice(request, candidate);
  return candidate;
}

}  // namespace lockstep::plan
