#include "deploy/plan/relaxations.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/held_by_serve.h"
#include "deploy/plan/layout_search.h"

namespace lockstep::plan {
namespace {

struct Change {
  std::string text;
  PlanRequest request;
  bool adds_nodes = false;  // as many as the plan takes
};

// That holds a usual request, and each of a trace.
int64_t ShortestContext(const PlanRequest& request) {
  int64_t longest = std::llround(request.input_tokens + request.output_tokens);
  for (const Arrival& arrival : request.trace) {
    longest = std::max(longest, arrival.input_tokens + arrival.output_tokens);
  }
  return longest;
}

std::vector<Change> ChangesOf(const PlanRequest& request, bool has_answer) {
  constexpr int kMostNodes = 4096;
  std::vector<Change> changes;
  if (!has_answer && request.max_nodes < kMostNodes) {
    changes.push_back({"", request, /*adds_nodes=*/true});
    changes.back().request.max_nodes = kMostNodes;
  }
  const auto add = [&](std::string text, auto apply) {
    Change change{std::move(text), request};
    if (apply(change.request) && CheckRequest(change.request).ok()) {
      changes.push_back(std::move(change));
    }
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
  if (const int64_t half = std::max(request.context / 2, ShortestContext(request));
      half < request.context) {
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
  if (request.rate_per_s > 0 && request.trace.empty()) {
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

using Found = std::pair<Relaxation, const Change*>;

void AddIfFound(const Change& change, const LayoutSearch& search, std::vector<Found>& found) {
  if (!search.chosen) return;
  const Candidate& smaller = search.candidates[*search.chosen];
  found.push_back(
      {{.change = change.adds_nodes ? absl::StrCat("--nodes ", smaller.nodes) : change.text,
        .layout = smaller.layout,
        .gpus = smaller.reserved_gpus,
        .tpot_ms = search.queue ? search.queue->tpot_p50_ms : smaller.prediction.tpot_ms,
        .output_tokens_per_s = smaller.output_tokens_per_s,
        .usd_per_hour = smaller.usd_per_hour,
        .usd_per_million_tokens = smaller.usd_per_million_tokens,
        .not_served = WhyNotServed(change.request, smaller),
        .is_simulated = smaller.is_simulated},
       &change});
}

void SortBestFirst(std::vector<Found>& found) {
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    const auto key = [](const Found& each) {
      const auto& [relaxation, change] = each;
      return std::make_tuple(!change->adds_nodes, !relaxation.not_served.empty(), relaxation.gpus);
    };
    return key(a) < key(b);
  });
}

}  // namespace

std::vector<Relaxation> FindRelaxations(const PlanRequest& request, int now,
                                        SimulationBudget& budget) {
  constexpr size_t kMostInQueues = 3;  // as many as are shown
  const int most = now == INT32_MAX ? now : now - 1;
  const std::vector<Change> changes = ChangesOf(request, now != INT32_MAX);
  std::vector<Found> found;
  for (const Change& change : changes) {
    AddIfFound(change, SearchByFormula(change.request, most), found);
  }
  SortBestFirst(found);
  if (request.rate_per_s > 0) {
    // A queue hardly needs fewer GPUs than the formula says.
    std::vector<Found> kept;
    for (size_t i = 0; i < found.size() && kept.size() < kMostInQueues; ++i) {
      const Change& change = *found[i].second;
      if (budget.is_spent()) {
        // Of a trace, formulas know no limits.
        const bool has_limits = change.request.ttft_p95_ms > 0 || change.request.tpot_p95_ms > 0;
        if (change.request.trace.empty() || !has_limits) kept.push_back(found[i]);
        continue;
      }
      // Nor much more: without that bound there would be thousands of nodes to try.
      const int bound = change.adds_nodes ? 2 * found[i].first.gpus : most;
      AddIfFound(change, SearchLayouts(change.request, budget, bound), kept);
    }
    found = std::move(kept);
    SortBestFirst(found);
  }
  std::vector<Relaxation> relaxations;
  for (Found& each : found) relaxations.push_back(std::move(each.first));
  return relaxations;
}

}  // namespace lockstep::plan
