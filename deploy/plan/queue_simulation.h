// A load on one replica: the engine's own scheduler over the simulated executor, in virtual time.
// What a formula cannot say: chunks beside decodes, blocks that run out, who waits for whom.
// Pure and deterministic; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "deploy/plan/arrivals.h"
#include "deploy/plan/latency.h"
#include "deploy/plan/stage_costs.h"

namespace lockstep::plan {

struct SimulatedReplica {
  const StageCosts& costs;
  int64_t num_kv_blocks = 0;
  int block_size = 16;
  int max_num_seqs = 256;
  int max_batched_tokens = 2048;
  int64_t max_model_len = 0;
  double request_ms = 0;  // added to every first token
  // 0: no limit. Else it ends once the 95th percentile is sure to be above one; what comes back is
  // then above it, too, but of few requests.
  double ttft_p95_limit_ms = 0;
  double tpot_p95_limit_ms = 0;
};

// Of requests that queue.
struct QueueResult {
  int num_requests = 0;      // measured; those of the start are not
  int num_replicas = 1;      // that had them
  int64_t num_left_out = 0;  // of the replica's share of a trace, after these
  // False: more and more requests run or wait, of a trace from its middle to its end; it is more
  // than the replica serves.
  bool is_steady = true;
  double ttft_mean_ms = 0;
  double ttft_p50_ms = 0;
  double ttft_p95_ms = 0;
  double tpot_mean_ms = 0;
  double tpot_p50_ms = 0;
  double tpot_p95_ms = 0;
  uint64_t num_preemptions = 0;
  // What the simulation took: tokens of all answers, and of prompts a sixteenth.
  int64_t num_tokens = 0;
};

// Requests that come at these times, and no others. Those longer than the replica's cache holds are
// left out.
QueueResult SimulateQueue(const SimulatedReplica& replica, const std::vector<Arrival>& arrivals);

// Independent requests that never end to come. `in_flight` of them are there when it begins, each
// with a part of its answer, so that no empty replica must fill first; it is a guess.
struct SteadyLoad {
  double rate_per_s = 0;
  double input_tokens = 0;
  double output_tokens = 0;
  double in_flight = 0;
  uint64_t seed = 1;
};
QueueResult SimulateSteadyQueue(const SimulatedReplica& replica, const SteadyLoad& load);

// Whichever of both the pattern is, for one of several replicas; of a trace for as many of them as
// have 200 requests together, or for all.
QueueResult SimulatePattern(const SimulatedReplica& replica, const ArrivalPattern& pattern,
                            int num_replicas, double in_flight);

// So many requests all the time (a whole number): whoever has an answer asks again. The outputs are
// half to one and a half times as long as the load says: of equal length they would all end
// together.
QueueResult SimulateClosedLoop(const SimulatedReplica& replica, const Load& load);

}  // namespace lockstep::plan
