// Queueing under load: the engine's own scheduler over the simulated executor, in virtual time.
// What a formula cannot say: chunks beside decodes, blocks that run out, who waits for whom.
// Pure and deterministic; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/planner.h"

namespace lockstep::plan {

// Independent arrivals at a rate (exponential gaps, from a seed), all of one size.
std::vector<Arrival> PoissonArrivals(double rate_per_s, int64_t input_tokens, int64_t output_tokens,
                                     int count, uint64_t seed);

// Lines "seconds,input,output", with or without a header. NOT_FOUND, INVALID_ARGUMENT naming the
// line: numbers out of range, times that go back, more than 100,000 lines.
absl::StatusOr<std::vector<Arrival>> LoadTrace(const std::string& path);

// One replica of the candidate. Requests longer than its cache holds are left out.
QueueResult SimulateQueue(const PlanRequest& request, const Candidate& candidate,
                          const std::vector<Arrival>& arrivals);

// What reaches one of the answer's replicas: its share of the trace, or independent arrivals, as
// many as a fraction of a second simulates.
std::vector<Arrival> ArrivalsOfReplica(const Plan& plan);

}  // namespace lockstep::plan
