// The least that a step must move and compute: the numerators of benchmarks' shares. Pure.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace lockstep::bench {

struct StepCost {
  double bytes = 0;  // weights once, cache of every context once
  // A multiply-add counts two. Apart, as the formats differ: weights may be fp8, the cache is not.
  double product_flops = 0;
  double attention_flops = 0;

  double flops() const { return product_flops + attention_flops; }
};
struct StepWork {
  int64_t num_tokens = 0;
  int64_t logits_rows = 0;  // which alone go on after the last layer's attention
  int64_t attended = 0;     // (token, position) pairs
  int64_t cached = 0;       // positions of all sequences
};
// A bf16 cache, weights of so many bytes. The LM head, which is not part of Forward, is not
// counted.
StepCost CostOfStep(const ModelConfig& config, const StepWork& work, int weight_bytes);

}  // namespace lockstep::bench
