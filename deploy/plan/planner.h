// The search: every layout of a model over GPUs, judged against a load, limits and a budget of
// nodes; the cheapest that holds is the answer. Pure; any thread; a second at most, of requests
// that come at a rate a few, of answers of tens of thousands of tokens at a rate fifteen.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/arrivals.h"
#include "deploy/plan/catalog.h"
#include "deploy/plan/engine_profile.h"
#include "deploy/plan/latency.h"
#include "deploy/plan/memory_plan.h"
#include "deploy/plan/queue_simulation.h"

namespace lockstep::plan {

struct PlanRequest {
  Model model;
  Gpu gpu;
  WeightFormat weights;
  KvFormat kv;
  KvPolicy policy;
  EngineProfile engine;
  MemoryOptions memory;  // steps are as long as the engine's, requests as the longest
  int gpus_per_node = 8;
  int max_nodes = 16;
  int64_t context = 0;  // the longest request, tokens; 0: input and output
  double input_tokens = 2000;
  double output_tokens = 500;
  double concurrency = 64;     // over all replicas; ignored when there is a rate
  double rate_per_s = 0;       // arriving requests; 0: as many as keep `concurrency` running
  std::vector<Arrival> trace;  // with a rate: replayed instead of independent arrivals
  double ttft_p95_ms = 0;      // 0: no limit
  double tpot_p95_ms = 0;
  int tp = 0;  // 0: any
  int pp = 0;
  bool expert_parallel = false;
  std::optional<double> usd_per_gpu_hour;
  std::string price_source;

  int64_t longest_request() const;
  // 90 of 100 measurements lie within these shares of the prediction.
  double tpot_band() const;
  double ttft_band() const;
};

// What keeps a layout from serving, or a plan from being smaller.
enum class Constraint {
  kNone,
  kShape,
  kWeights,
  kContext,
  kConcurrency,
  kRate,
  kTtft,
  kTpot,
  kGpus
};
const char* ConstraintName(Constraint constraint);

struct Candidate {
  Layout layout;
  bool holds = false;
  bool is_simulated = false;                    // its queue, of a load that has a rate
  Constraint broken = Constraint::kNone;        // when it does not hold
  int fewest_replicas = 1;                      // that hold; more of them cost nothing
  Constraint replicas_for = Constraint::kNone;  // why one less than those would not do
  std::string reason;                           // one line
  bool tp_across_nodes = false;                 // and no link joins these
  int nodes = 1;
  int reserved_gpus = 1;  // one node is taken in part, several are taken whole
  MemoryPlan memory;
  // Of the fullest replica; when requests do not divide, others have one less.
  Prediction prediction;
  double load_per_replica = 0;                   // requests at the same time
  double output_tokens_per_s = 0;                // of all replicas
  std::optional<double> usd_per_hour;            // where a GPU's price is known
  std::optional<double> usd_per_million_tokens;  // of output
};

// A change of the request with which fewer GPUs do, and what serves then.
struct Relaxation {
  std::string change;  // "--kv fp8"
  Layout layout;
  int gpus = 0;        // that are reserved
  double tpot_ms = 0;  // half of the requests in the queue, where one was simulated, else the mean
  double output_tokens_per_s = 0;
  std::optional<double> usd_per_hour;
  std::optional<double> usd_per_million_tokens;
  std::string not_served;  // WhyNotServed
  bool is_simulated = false;
};

struct Plan {
  PlanRequest request;
  std::vector<Candidate> candidates;
  std::optional<size_t> chosen;
  Constraint binding = Constraint::kNone;
  std::string binding_reason;
  std::vector<Relaxation> relaxations;  // what `serve` serves first, of these the cheapest
  std::string not_served;               // WhyNotServed of the answer
  std::optional<QueueResult> queue;     // of one of the answer's replicas, when there is a rate
  const Candidate* answer() const { return chosen ? &candidates[*chosen] : nullptr; }
};

constexpr double kLowestRate = 1e-9;  // per second; the next one comes in 30 years
constexpr double kHighestRate = 1e6;

// INVALID_ARGUMENT: numbers out of range, a context beyond the model's, contradictions; one line.
absl::Status CheckRequest(const PlanRequest& request);

// What simulations of queues may take, and who hears of each before it begins.
struct SimulationBudget {
  int64_t tokens = 30'000'000;  // what is left; a second simulates some millions
  std::function<void(const Layout&)> on_begin = nullptr;
  bool is_spent() const { return tokens <= 0; }
};

// A plan without an answer is not an error: binding says what does not fit.
absl::StatusOr<Plan> MakePlan(const PlanRequest& request, SimulationBudget budget = {});

// Ranks that a node of the plan has when there are several: whole tensor parallel groups, so that
// none is split between nodes; of groups larger than a node, a node's GPUs.
int RanksPerNode(const PlanRequest& request, int tp);
int NumNodes(const PlanRequest& request, const Layout& layout);
// One node is taken in part, several are taken whole.
int ReservedGpus(const PlanRequest& request, const Layout& layout);
// As many as reserve at most so many GPUs of the nodes that are allowed; may be 0.
int MostReplicas(const PlanRequest& request, const Layout& layout, int most_gpus);

// One layout, with as many replicas as the load needs by formula, and no less than `fewest`.
Candidate Judge(const PlanRequest& request, int tp, int pp, int fewest_replicas = 1);

// One replica of a layout that fits, under another load.
Prediction PredictReplica(const PlanRequest& request, const Candidate& candidate,
                          double concurrency);

}  // namespace lockstep::plan
