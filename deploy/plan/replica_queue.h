// One replica of a layout that fits, with its queue: simulated with the limits that the launch
// command sets. Pure; any thread.
#pragma once

#include <vector>

#include "deploy/plan/arrivals.h"
#include "deploy/plan/planner.h"
#include "deploy/plan/queue_simulation.h"

namespace lockstep::plan {

constexpr int kMostSequences = 65536;  // of --max-num-seqs

// Sequences that a replica of the candidate may run at the same time.
int MaxNumSeqs(const PlanRequest& request, const Candidate& candidate);

// When requests come like this; or at the request's rate, or as its trace has them, divided among
// the candidate's replicas.
QueueResult SimulateReplica(const PlanRequest& request, const Candidate& candidate,
                            const std::vector<Arrival>& arrivals);
QueueResult SimulateReplica(const PlanRequest& request, const Candidate& candidate);

}  // namespace lockstep::plan
