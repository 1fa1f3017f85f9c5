#include "deploy/plan/replica_queue.h"

#include <algorithm>
#include <cmath>

#include "deploy/plan/roofline.h"

namespace lockstep::plan {

int MaxNumSeqs(const PlanRequest& request, const Candidate& candidate) {
  // Of the mean number in flight: arrivals bunch.
  constexpr double kBurst = 2.0;
  const bool by_rate = request.rate_per_s > 0;
  const double planned = static_cast<double>(request.memory.max_num_seqs);
  const double load = candidate.load_per_replica;
  const double needed = by_rate ? std::max(planned, kBurst * load) : load;
  const int most =
      std::min({kMostSequences, request.engine.max_running, request.engine.max_batched_tokens});
  return static_cast<int>(std::clamp(std::ceil(needed), 1.0, static_cast<double>(most)));
}

namespace {

// The simulated scheduler keeps every token. Where windows or budgets let a cache hold more
// requests than that, it gets as many blocks as those would take.
int64_t BlocksInQueue(const PlanRequest& request, const Candidate& candidate) {
  constexpr double kMost = 1 << 24;  // a block costs the simulation 20 bytes
  const MemoryPlan& memory = candidate.memory;
  const auto blocks_for = [&](double tokens) {
    return std::ceil(tokens / static_cast<double>(request.memory.block_size));
  };
  const double num_requests =
      std::min<double>(MaxNumSeqs(request, candidate), static_cast<double>(memory.max_requests));
  const double needed =
      std::max(num_requests * blocks_for(request.input_tokens + request.output_tokens),
               blocks_for(static_cast<double>(request.longest_request())));
  return std::max(memory.num_kv_blocks, static_cast<int64_t>(std::min(needed, kMost)));
}

// What a queue is simulated with, for the time that it takes.
class SimulatedDeployment {
 public:
  SimulatedDeployment(const PlanRequest& request, const Candidate& candidate)
      : roofline_({request.model.architecture, request.weights, request.kv, request.policy,
                   request.gpu, request.engine, candidate.layout,
                   RanksPerNode(request, candidate.layout.tp)}),
        replica_{.costs = roofline_,
                 .num_kv_blocks = BlocksInQueue(request, candidate),
                 .block_size = static_cast<int>(request.memory.block_size),
                 .max_num_seqs = MaxNumSeqs(request, candidate),
                 .max_batched_tokens = request.engine.max_batched_tokens,
                 .max_model_len = candidate.memory.max_request_tokens,
                 .request_ms = request.engine.request_ms,
                 .ttft_p95_limit_ms = request.ttft_p95_ms,
                 .tpot_p95_limit_ms = request.tpot_p95_ms} {}
  const SimulatedReplica& replica() const { return replica_; }

 private:
  const Roofline roofline_;
  const SimulatedReplica replica_;
};

}  // namespace

QueueResult SimulateReplica(const PlanRequest& request, const Candidate& candidate,
                            const std::vector<Arrival>& arrivals) {
  return SimulateQueue(SimulatedDeployment(request, candidate).replica(), arrivals);
}

QueueResult SimulateReplica(const PlanRequest& request, const Candidate& candidate) {
  return SimulatePattern(
      SimulatedDeployment(request, candidate).replica(),
      {request.trace, request.rate_per_s, request.input_tokens, request.output_tokens},
      candidate.layout.replicas, candidate.load_per_replica);
}

}  // namespace lockstep::plan
