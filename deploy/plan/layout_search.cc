#include "deploy/plan/layout_search.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "deploy/plan/replica_queue.h"

namespace lockstep::plan {
namespace {

constexpr int kMaxTp = 64;
constexpr int kMaxPp = 16;

// Fewest GPUs to reserve, then groups inside nodes (what `serve` starts unasked), then the cheapest
// tokens; when a rate says how many those are, the fastest.
bool IsBetter(const PlanRequest& request, const Candidate& a, const Candidate& b) {
  const auto key = [&](const Candidate& c) {
    const double tokens = request.rate_per_s > 0 ? 0.0 : c.output_tokens_per_s;
    return std::make_tuple(c.reserved_gpus, c.tp_across_nodes, -tokens, c.prediction.tpot_ms,
                           c.prediction.ttft_ms);
  };
  return key(a) < key(b);
}

std::vector<int> TensorParallelSizes(const PlanRequest& request) {
  if (request.tp > 0) return {request.tp};
  std::vector<int> sizes;
  const int most = std::min(kMaxTp, request.gpus_per_node * request.max_nodes);
  for (int tp = 1; tp <= most; ++tp) {
    const bool is_power_of_two = (tp & (tp - 1)) == 0;
    const bool fits_nodes =
        request.gpus_per_node % tp == 0 ||
        (is_power_of_two && (tp < request.gpus_per_node || tp % request.gpus_per_node == 0));
    if (fits_nodes) sizes.push_back(tp);
  }
  return sizes;
}

int MostStages(const PlanRequest& request, int tp) {
  const int64_t most = std::min<int64_t>(kMaxPp, request.model.architecture.num_layers);
  return std::min(static_cast<int>(most), MostReplicas(request, {.tp = tp}, INT32_MAX));
}

std::vector<Candidate> JudgeAll(const PlanRequest& request) {
  std::vector<Candidate> candidates;
  for (const int tp : TensorParallelSizes(request)) {
    const int first = std::max(1, request.pp);
    const int last = request.pp > 0 ? request.pp : MostStages(request, tp);
    for (int pp = first; pp <= last; ++pp) {
      candidates.push_back(Judge(request, tp, pp));
      // A shape that does not divide does not divide at any pp.
      if (candidates.back().broken == Constraint::kShape) break;
    }
  }
  return candidates;
}

std::optional<size_t> Choose(const PlanRequest& request, const std::vector<Candidate>& candidates,
                             int most_gpus) {
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!candidates[i].holds || candidates[i].reserved_gpus > most_gpus) continue;
    if (!best || IsBetter(request, candidates[i], candidates[*best])) best = i;
  }
  return best;
}

Constraint BrokenInQueue(const PlanRequest& request, const QueueResult& queue) {
  if (!queue.is_steady || queue.num_requests == 0) return Constraint::kRate;
  if (request.ttft_p95_ms > 0 && queue.ttft_p95_ms > request.ttft_p95_ms) return Constraint::kTtft;
  if (request.tpot_p95_ms > 0 && queue.tpot_p95_ms > request.tpot_p95_ms) return Constraint::kTpot;
  return Constraint::kNone;
}

std::string ReasonInQueue(const PlanRequest& request, int replicas, Constraint broken) {
  const std::string where =
      replicas > 1 ? absl::StrFormat("even with %d replicas: ", replicas) : "";
  switch (broken) {
    case Constraint::kTtft:
      return absl::StrFormat("%sTTFT p95 above %.0f ms in a simulated queue", where,
                             request.ttft_p95_ms);
    case Constraint::kTpot:
      return absl::StrFormat("%sTPOT p95 above %.1f ms in a simulated queue", where,
                             request.tpot_p95_ms);
    default:
      return where + "a simulated queue fills up without end";
  }
}

// Gives every layout that could be the answer the replicas that its queue needs.
class QueueSearch {
 public:
  QueueSearch(const PlanRequest& request, SimulationBudget& budget, int most_gpus)
      : request_(request), budget_(budget), most_gpus_(most_gpus) {}

  // The best by formula first: of those behind the first that holds few could be better.
  void Run(std::vector<Candidate>& candidates) {
    std::vector<size_t> order(candidates.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return IsBetter(request_, candidates[a], candidates[b]);
    });
    for (const size_t i : order) {
      Candidate& candidate = candidates[i];
      if (!candidate.holds || !CanWin(candidate)) continue;
      if (best_ && budget_.is_spent()) continue;
      if (!Try(candidate)) AddReplicas(candidate, broken_);
      candidate.is_simulated = true;
    }
  }

  // Of the best that holds, which is one of the candidates.
  const std::optional<QueueResult>& queue() const { return queue_; }
  bool is_best(const Candidate& candidate) const {
    return best_ && best_->layout.tp == candidate.layout.tp &&
           best_->layout.pp == candidate.layout.pp;
  }

 private:
  bool CanWin(const Candidate& candidate) const {
    return candidate.reserved_gpus <= most_gpus_ &&
           (!best_ || IsBetter(request_, candidate, *best_));
  }

  // True, and it is the best so far, if it holds in a queue.
  bool Try(const Candidate& candidate) {
    if (budget_.on_begin) budget_.on_begin(candidate.layout);
    last_ = SimulateReplica(request_, candidate);
    budget_.tokens -= last_.num_tokens;
    broken_ = BrokenInQueue(request_, last_);
    if (broken_ != Constraint::kNone) return false;
    best_ = candidate;
    queue_ = last_;
    return true;
  }

  Candidate With(const Candidate& candidate, int replicas) const {
    return Judge(request_, candidate.layout.tp, candidate.layout.pp, replicas);
  }

  // With the most replicas that would still be better than the best.
  Candidate Largest(const Candidate& candidate) const {
    const int most = best_ ? std::min(most_gpus_, best_->reserved_gpus) : most_gpus_;
    const auto with = [&](int gpus) {
      const int replicas = MostReplicas(request_, candidate.layout, gpus);
      return With(candidate, std::max(candidate.layout.replicas, replicas));
    };
    const Candidate largest = with(most);
    return CanWin(largest) ? largest : with(most - 1);
  }

  // The fewest that hold, by halving, of hundreds to half a percent: more never hold less.
  void AddReplicas(Candidate& candidate, Constraint why) {
    int bad = candidate.layout.replicas;
    Candidate good = Largest(candidate);
    if (good.layout.replicas == bad || !good.holds || !CanWin(good)) {
      return Break(candidate, bad, why);
    }
    if (!Try(good)) return Break(candidate, good.layout.replicas, broken_);
    while (good.layout.replicas - bad >
           std::max(1, good.layout.replicas / (budget_.is_spent() ? 10 : 200))) {
      Candidate middle = With(candidate, bad + (good.layout.replicas - bad) / 2);
      if (Try(middle)) {
        good = std::move(middle);
      } else {
        bad = middle.layout.replicas;
        why = broken_;
      }
    }
    candidate = std::move(good);
    candidate.replicas_for = why;
  }

  void Break(Candidate& candidate, int replicas, Constraint broken) const {
    candidate.holds = false;
    candidate.broken = broken;
    candidate.reason = ReasonInQueue(request_, replicas, broken);
    candidate.layout.replicas = 1;
    candidate.nodes = NumNodes(request_, candidate.layout);
    candidate.reserved_gpus = ReservedGpus(request_, candidate.layout);
  }

  const PlanRequest& request_;
  SimulationBudget& budget_;
  const int most_gpus_;
  std::optional<Candidate> best_;
  std::optional<QueueResult> queue_;
  QueueResult last_;
  Constraint broken_ = Constraint::kNone;
};

void SortByGpus(std::vector<Candidate>& candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return std::make_tuple(a.layout.gpus(), a.layout.tp) <
                            std::make_tuple(b.layout.gpus(), b.layout.tp);
                   });
}

}  // namespace

LayoutSearch SearchByFormula(const PlanRequest& request, int most_gpus) {
  LayoutSearch search;
  search.candidates = JudgeAll(request);
  SortByGpus(search.candidates);
  search.chosen = Choose(request, search.candidates, most_gpus);
  return search;
}

LayoutSearch SearchLayouts(const PlanRequest& request, SimulationBudget& budget, int most_gpus) {
  LayoutSearch search = SearchByFormula(request, most_gpus);
  if (request.rate_per_s == 0) return search;
  QueueSearch queues(request, budget, most_gpus);
  queues.Run(search.candidates);
  SortByGpus(search.candidates);
  search.queue = queues.queue();
  search.chosen = std::nullopt;
  for (size_t i = 0; i < search.candidates.size(); ++i) {
    if (queues.is_best(search.candidates[i])) search.chosen = i;
  }
  return search;
}

}  // namespace lockstep::plan
