#include "deploy/plan/host_prediction.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace lockstep::plan {
namespace {

SimulatedReplica ReplicaOf(const HostCosts& costs, const HostProfile& profile,
                           const HostLimits& limits) {
  return {.costs = costs,
          .num_kv_blocks = limits.num_kv_blocks,
          .block_size = limits.block_size,
          .max_num_seqs = limits.max_num_seqs,
          .max_batched_tokens = limits.max_batched_tokens,
          .max_model_len = limits.num_kv_blocks * limits.block_size,
          .request_ms = profile.request_ms};
}

void Take(const QueueResult& simulated, Prediction& prediction) {
  prediction.ttft_ms = simulated.ttft_mean_ms;
  prediction.ttft_p95_ms = simulated.ttft_p95_ms;
  prediction.tpot_ms = simulated.tpot_mean_ms;
  prediction.tpot_p95_ms = simulated.tpot_p95_ms;
}

// The times of a closed loop. A number of requests between two whole ones lies between theirs.
void FillSimulated(const SimulatedReplica& replica, Load load, Prediction& prediction) {
  const double share = load.concurrency - std::floor(load.concurrency);
  load.concurrency = std::floor(load.concurrency);
  const QueueResult low = SimulateClosedLoop(replica, load);
  load.concurrency += share > 0 ? 1 : 0;
  const QueueResult high = share > 0 ? SimulateClosedLoop(replica, load) : low;
  QueueResult between = low;
  for (double QueueResult::*time : {&QueueResult::ttft_mean_ms, &QueueResult::ttft_p95_ms,
                                    &QueueResult::tpot_mean_ms, &QueueResult::tpot_p95_ms}) {
    between.*time = (1.0 - share) * low.*time + share * high.*time;
  }
  Take(between, prediction);
}

// How many requests of so many tokens the cache holds at once.
absl::StatusOr<int64_t> RequestsHeld(const SimulatedReplica& replica, double tokens) {
  const auto held = static_cast<int64_t>(static_cast<double>(replica.max_model_len) / tokens);
  if (held >= 1) return held;
  return absl::InvalidArgumentError(absl::StrFormat(
      "a KV cache of %d tokens holds no request of %.0f", replica.max_model_len, tokens));
}

EngineProfile EngineOf(const SimulatedReplica& replica) {
  EngineProfile engine;
  engine.request_ms = replica.request_ms;
  engine.max_batched_tokens = replica.max_batched_tokens;
  engine.max_running = replica.max_num_seqs;
  return engine;
}

Prediction ByFormula(const HostCosts& costs, const SimulatedReplica& replica, const Load& load,
                     int64_t max_requests) {
  return Predict(costs, EngineOf(replica), load, max_requests);
}

}  // namespace

absl::StatusOr<Prediction> PredictOnHost(const HostDeployment& deployment, const Load& load,
                                         const HostLimits& limits) {
  ASSIGN_OR_RETURN(const HostCosts costs, HostCosts::Create(deployment));
  const SimulatedReplica replica = ReplicaOf(costs, deployment.profile, limits);
  const double longest = load.concurrency > 1 ? 1.5 : 1.0;  // times the mean output
  const double tokens = load.input_tokens + longest * load.output_tokens;
  ASSIGN_OR_RETURN(const int64_t held, RequestsHeld(replica, tokens));
  Prediction prediction = ByFormula(costs, replica, load, held);
  Load admitted = load;
  admitted.concurrency = std::min(
      {load.concurrency, static_cast<double>(held), static_cast<double>(limits.max_num_seqs)});
  FillSimulated(replica, admitted, prediction);
  const double request_ms =
      prediction.ttft_ms + prediction.tpot_ms * std::max(1.0, load.output_tokens - 1);
  prediction.requests_per_s = 1e3 * admitted.concurrency / request_ms;
  prediction.output_tokens_per_s = prediction.requests_per_s * load.output_tokens;
  // The others wait until it is their turn.
  const double turns = std::max(0.0, load.concurrency / admitted.concurrency - 1.0);
  prediction.ttft_ms += turns * request_ms;
  prediction.ttft_p95_ms += turns * request_ms;
  return prediction;
}

absl::StatusOr<HostQueue> PredictQueueOnHost(const HostDeployment& deployment,
                                             const ArrivalPattern& arrivals,
                                             const HostLimits& limits) {
  ASSIGN_OR_RETURN(const HostCosts costs, HostCosts::Create(deployment));
  const SimulatedReplica replica = ReplicaOf(costs, deployment.profile, limits);
  ASSIGN_OR_RETURN(const int64_t held,
                   RequestsHeld(replica, arrivals.input_tokens + arrivals.output_tokens));
  HostQueue result;
  const auto most = static_cast<double>(std::min<int64_t>(held, limits.max_num_seqs));
  Load load{arrivals.input_tokens, arrivals.output_tokens, most, {}, /*arrives=*/true};
  const double in_flight =
      ConcurrencyAtRate(costs, EngineOf(replica), load, held, arrivals.rate_per_s).value_or(most);
  result.queue = SimulatePattern(replica, arrivals, 1, in_flight);
  const QueueResult& queue = result.queue;
  const double seconds =
      (queue.ttft_mean_ms + queue.tpot_mean_ms * std::max(1.0, arrivals.output_tokens - 1)) * 1e-3;
  const double most_per_s = ByFormula(costs, replica, load, held).requests_per_s;
  load.concurrency = std::clamp(arrivals.rate_per_s * seconds, 1.0, most);  // Little's law
  Prediction& prediction = result.prediction = ByFormula(costs, replica, load, held);
  prediction.saturated = most_per_s < arrivals.rate_per_s;
  prediction.requests_per_s = std::min(most_per_s, arrivals.rate_per_s);
  prediction.output_tokens_per_s = prediction.requests_per_s * arrivals.output_tokens;
  Take(queue, prediction);
  return result;
}

}  // namespace lockstep::plan
