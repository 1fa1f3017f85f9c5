// What `lockstep serve` on GPUs lacks to be what a plan describes: plans are for other engines,
// too, and for hardware that has no backend here. Pure; any thread.
#pragma once

#include <string>

#include "deploy/plan/planner.h"

namespace lockstep::plan {

inline constexpr int kMostServedReplicas = 256;  // of --replicas

// The rest of a sentence that begins with "`serve`", or nothing when it can serve the candidate.
std::string WhyNotServed(const PlanRequest& request, const Candidate& candidate);

}  // namespace lockstep::plan
