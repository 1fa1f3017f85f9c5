// Single changes of a request with which fewer GPUs do. Pure; any thread.
#pragma once

#include <vector>

#include "deploy/plan/planner.h"

namespace lockstep::plan {

// Those that need fewer GPUs than `now` (INT32_MAX: nothing holds; then more nodes come first), as
// flags that may be given beside the request's, found by
// the rule by which a plan is: of requests that come at a rate three, because each queue takes
// time, and by formula once the budget is spent. First those that `serve` can follow, the smallest
// plan first; among equals what costs no quality of service comes first.
std::vector<Relaxation> FindRelaxations(const PlanRequest& request, int now,
                                        SimulationBudget& budget);

}  // namespace lockstep::plan
