// The cheapest layout that holds a load: by formula where so many requests run all the time; where
// they come at a rate, or as a trace has them, by simulation of their queue, too. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "deploy/plan/planner.h"

namespace lockstep::plan {

struct LayoutSearch {
  std::vector<Candidate> candidates;  // ascending in GPUs
  std::optional<size_t> chosen;
  std::optional<QueueResult> queue;  // of one of the chosen one's replicas
};

// Within the request's nodes, and so many GPUs. Once the budget is spent what holds already is the
// answer, and replicas are found to a tenth. The request must have been checked.
LayoutSearch SearchLayouts(const PlanRequest& request, SimulationBudget& budget,
                           int most_gpus = INT32_MAX);
// The same without simulation, which promises too much if it is wrong.
LayoutSearch SearchByFormula(const PlanRequest& request, int most_gpus = INT32_MAX);

}  // namespace lockstep::plan
