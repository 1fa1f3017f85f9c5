// Requests that tests of the planner begin with.
#pragma once

#include "deploy/plan/planner.h"

namespace lockstep::plan {

// By names of the catalog, with a bf16 cache, and speeds measured with vLLM.
inline PlanRequest RequestFor(const char* model = "llama-3.1-8b", const char* gpu = "h100",
                              const char* weights = "bf16") {
  PlanRequest request;
  request.model = *LoadModel(model);
  request.gpu = *FindGpu(gpu);
  request.weights = *FindWeightFormat(weights);
  request.kv = *FindKvFormat("bf16");
  request.engine = *FindEngine("vllm");
  return request;
}

// On so many GPUs to a group, requests of this size that come at a rate.
struct SteadyRequests {
  double rate_per_s, input_tokens, output_tokens;
};
inline PlanRequest AtRate(PlanRequest request, int tp, const SteadyRequests& load) {
  request.tp = tp;
  request.pp = 1;
  request.rate_per_s = load.rate_per_s;
  request.input_tokens = load.input_tokens;
  request.output_tokens = load.output_tokens;
  return request;
}

// The same on nodes as they are sold, a dollar for an hour of each GPU.
inline PlanRequest PricedRequest(const char* model, const char* gpu, const char* weights) {
  PlanRequest request = RequestFor(model, gpu, weights);
  request.gpus_per_node = request.gpu.gpus_per_node;
  request.usd_per_gpu_hour = 1.0;
  return request;
}

}  // namespace lockstep::plan
