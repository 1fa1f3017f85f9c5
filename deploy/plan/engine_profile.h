// How near a serving engine comes to the hardware's limits, and what it adds to them: few
// coefficients per engine, fitted to public measurements by plan_fit and kept in
// data/engines.json; or calibrated (gpu_calibration.h). Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/collectives.h"

namespace lockstep::plan {

struct EngineProfile {
  std::string name;
  std::string source;
  // Shares of the datasheet's rates.
  double weight_bandwidth = 0.85;
  double kv_bandwidth = 0.80;
  double flops_16 = 0.65;
  double flops_8 = 0.60;
  double flops_4 = 0.45;
  // Of what it reaches of the 16-bit rate, the share that attention over prompts reaches:
  // FlashAttention-3 740 of 989 TFLOP/s forward (arXiv 2407.08608), less when causal and short.
  double attention_share = 0.7;
  // Tokens choose alike: so many of them reach as many experts as tokens^spread independent ones.
  double routing_spread = 0.8;
  double hidden_state_bytes = 2.0;  // of a number that ranks exchange
  MeasuredLinks links;              // its own collectives, where they were measured
  // Added to every step, in microseconds.
  double step_us = 500.0;
  double layer_us = 42.0;    // per layer: norms, rotation, quantization, gaps between kernels
  double sequence_us = 8.0;  // per running sequence: scheduling, sampling, text
  double prefill_layer_us = 450.0;  // per layer: a step with a prompt takes no less (its kernels
                                    // are launched one by one, not as a graph)
  // The same of a layer with experts, beyond these: routing, sorting tokens by expert and back.
  double moe_layer_us = 40.0;
  double moe_prefill_layer_us = 400.0;
  // And of a layer with latent attention: projections into the latents and out of them.
  double latent_layer_us = 15.0;
  // Added to the first token, in milliseconds: connection, tokenization, scheduling.
  double request_ms = 25.0;
  // Whether tokens without logits end with the last layer's attention (StageWork::logits_only). The
  // coefficients of others are fitted to whole layers.
  bool leaves_tokens_without_logits = false;
  int max_batched_tokens = 8192;
  int max_running = 1 << 20;
  // 90 of 100 measurements that the fit never saw lie within these shares of the prediction.
  double tpot_band = 0.2;
  double ttft_band = 0.5;
  // The same of models with experts.
  double moe_tpot_band = 0.4;
  double moe_ttft_band = 1.0;
};

// How a benchmark's closed loop differs from a steady load: part of the requests come all at once,
// and a freed slot is not used at once.
struct LoadPattern {
  std::string name = "steady";
  double burst_share = 0.0;
  double slot_share = 0.0;
};

// vllm, trtllm, sglang. NOT_FOUND with the nearest name.
absl::StatusOr<EngineProfile> FindEngine(const std::string& name);
std::vector<std::string> EngineNames();
// How the benchmarks that a version of the engine was fitted to load it; steady when there is none.
LoadPattern BenchmarkPattern(const std::string& engine, const std::string& version);

}  // namespace lockstep::plan
