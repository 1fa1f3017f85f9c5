// The bytes and operations of one step on each stage of a layout, counted from the model's
// dimensions: what the roofline divides by the hardware's rates. Pure; any thread.
#pragma once

#include <vector>

#include "deploy/plan/architecture.h"
#include "deploy/plan/formats.h"
#include "deploy/plan/kv_bytes.h"
#include "deploy/plan/weight_bytes.h"

namespace lockstep::plan {

// Of one rank of a stage; per token where it says so.
struct StageWork {
  int stage = 0;
  double num_layers = 0;
  double linear_bytes = 0;     // read once per step whatever the batch
  double expert_bytes = 0;     // all routed experts
  double expert_share = 1.0;   // of them that one token reads
  double linear_flops = 0;     // per token; without routed experts
  double wide_flops = 0;       // of linear_flops: by weights held as the LM head is
  double expert_flops = 0;     // per token
  double moe_layers = 0;       // those of num_layers that have experts
  double lm_head_bytes = 0;    // last stage
  double lm_head_flops = 0;    // per sampled token
  double attention_flops = 0;  // of a prompt, per token and token attended
  // The same of a decode over latents, which all heads share, per layer; 0: heads have their own.
  double latent_decode_flops = 0;
  double activation_bytes = 0;  // per token
  double hidden_size = 0;       // numbers per token: of an all-reduce, and to the next stage
  double all_reduces = 0;       // per step
  // What of linear_bytes, linear_flops, wide_flops and all_reduces is attention's output and the
  // MLP of the last layer, which the runtime computes for tokens with logits alone: last stage; 0
  // where the runtime does not (latents, experts).
  struct LogitsOnly {
    double bytes = 0;
    double flops = 0;
    double wide_flops = 0;
    double all_reduces = 0;
  } logits_only;
  Range layers;
};

std::vector<StageWork> WorkOfStages(const Architecture& model, const WeightFormat& format,
                                    const Layout& layout);

// Expert bytes that num_tokens tokens read, taking every expert for equally likely.
double ExpertBytesRead(const StageWork& work, double num_tokens);

}  // namespace lockstep::plan
