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

constexpr int kMostSimulatedSeqs = 1024;  // running at the same time; each has a slot

struct SimulatedReplica {
  const StageCosts& costs;
  int64_t num_kv_blocks = 0;
  int block_size = 16;
  int max_num_seqs = 256;
  int max_batched_tokens = 2048;
  int64_t max_model_len = 0;
  double request_ms = 0;  // added to every first token
};

// Of requests that queue.
struct QueueResult {
  int num_requests = 0;  // measured; those of the start are not
  // False of a load that goes on: more and more requests ran or waited until the end of what is
  // simulated. It is more than the replica serves, or its requests take longer than that.
  bool is_steady = true;
  double ttft_mean_ms = 0;
  double ttft_p50_ms = 0;
  double ttft_p95_ms = 0;
  double tpot_mean_ms = 0;
  double tpot_p50_ms = 0;
  double tpot_p95_ms = 0;
  uint64_t num_preemptions = 0;
};

// Requests longer than its cache holds are left out.
QueueResult SimulateQueue(const SimulatedReplica& replica, const ArrivalStream& stream);

// So many requests all the time (a whole number): whoever has an answer asks again. The outputs are
// half to one and a half times as long as the load says: of equal length they would all end
// together.
QueueResult SimulateClosedLoop(const SimulatedReplica& replica, const Load& load);

}  // namespace lockstep::plan
