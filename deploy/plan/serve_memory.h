// What a rank of `serve` takes of its GPU beside weights, KV cache and collectives, by the
// functions by which it allocates. Pure; any thread.
#pragma once

#include <cstdint>

#include "deploy/plan/memory_plan.h"

namespace lockstep::plan {

// In bytes.
struct ServeMemory {
  int64_t buffers = 0;  // a step's activations, its batch, RoPE's tables, what tokens are chosen in
  int64_t workspaces = 0;  // the kernels' own
};

// Of a stage's first rank, which has no less than the others, in a job that sets --max-model-len to
// options.max_model_len. The runtime must load the model (Architecture::runtime_config) and the
// layout must have been checked.
ServeMemory MemoryOfServe(const MemoryInputs& inputs, const Layout& layout, int stage);

}  // namespace lockstep::plan
