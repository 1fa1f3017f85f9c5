// Time to first token, time per output token and throughput of a deployment under a load. Pure;
// any thread.
//
// Decode: a token's period is max(micro-batches, pp) stage times, so the pipeline's utilisation is
// min(1, m / pp). A prompt: (chunks + pp - 1) stage times. Both meet in the same steps: while a
// sequence decodes, every other running one's prompt passes once and holds up each stage in turn.
#pragma once

#include <cstdint>
#include <optional>

#include "deploy/plan/engine_profile.h"
#include "deploy/plan/stage_costs.h"

namespace lockstep::plan {

struct Load {
  double input_tokens = 2000;
  double output_tokens = 500;
  double concurrency = 1;  // requests in a replica, running or waiting, all the time
  LoadPattern pattern;
  // They come when they come, so that a new one meets as many as there are; else it takes the place
  // of one that left and meets one less.
  bool arrives = false;
};

struct Prediction {
  double ttft_ms = 0;
  double ttft_p95_ms = 0;
  double tpot_ms = 0;  // 0 of answers of one token
  double tpot_p95_ms = 0;
  double running = 0;              // requests in decode, on average
  double output_tokens_per_s = 0;  // of one replica
  double requests_per_s = 0;
  double utilization = 0;  // share of time that prompts take
  bool saturated = false;  // more requests than the KV cache holds: they wait
  StepCost decode_step;    // the slowest stage's
};

// max_requests: how many the KV cache holds at once (MemoryPlan), at least 1.
Prediction Predict(const StageCosts& costs, const EngineProfile& engine, const Load& load,
                   int64_t max_requests);

// How many requests are there at once when they arrive at this rate (Little's law; load.concurrency
// is ignored), or nullopt when they come faster than they leave.
std::optional<double> ConcurrencyAtRate(const StageCosts& costs, const EngineProfile& engine,
                                        Load load, int64_t max_requests, double rate_per_s);

}  // namespace lockstep::plan
