// Memory of every rank of a layout: weights where they sit, activations, communication, the
// runtime's own, a reserve, and how many KV blocks the rest holds. Pure; any thread.
//
// Blocks come from runtime/engine/kv_capacity.h, weights of the models that `serve` loads from
// model/checkpoint/shard_sizes.h: the same functions by which the runtime allocates. So do, of
// Lockstep's own plans, buffers and workspaces (serve_memory.h) and what is spared; of other
// engines' they are vLLM's.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/architecture.h"
#include "deploy/plan/formats.h"
#include "deploy/plan/kv_bytes.h"
#include "deploy/plan/weight_bytes.h"

namespace lockstep::plan {

struct MemoryOptions {
  int64_t block_size = 16;
  int64_t max_num_seqs = 256;
  int64_t max_batched_tokens = 8192;
  // Share of the GPU's memory that may be used; the rest is the reserve.
  double utilization = 0.90;
  // As ranks of `serve` take it, if it loads the model; they set max_model_len aside, too.
  bool by_serve = false;
  int64_t max_model_len = 0;
};

// All in bytes, of the stage's fullest rank.
struct StageMemory {
  int stage = 0;
  int first_rank = 0;
  RankWeights weights;
  int64_t activations = 0;
  int64_t communication = 0;
  int64_t runtime = 0;  // libraries, workspaces, recorded steps; of other engines the driver's, too
  int64_t reserve = 0;  // with what `serve` spares (runtime/engine/spare_memory.h)
  int64_t capacity = 0;   // as the driver reports it
  int64_t kv_budget = 0;  // what is left; negative: this much is missing
  int64_t kv_bytes_per_token = 0;
  int64_t kv_blocks_held = 0;  // by this stage alone
  // What weights and the rest take before the first block.
  int64_t fixed() const {
    return weights.total() + activations + communication + runtime + reserve;
  }
};

struct MemoryPlan {
  std::vector<StageMemory> stages;
  int64_t num_kv_blocks = 0;       // of every rank: the smallest of the stages
  int64_t bytes_per_request = 0;   // KV of a request of request_tokens, on the stage that limits
  int64_t max_requests = 0;        // of request_tokens at the same time
  int64_t max_running = 0;         // of mean_tokens: requests that are at all points of their way
  int64_t max_request_tokens = 0;  // the longest request that fits alone, at most the model's
  const StageMemory& fullest() const;
  bool fits() const { return num_kv_blocks > 0; }
};

struct MemoryInputs {
  const Architecture& model;
  const WeightFormat& weights;
  const KvFormat& kv;
  const KvPolicy& policy;
  MemoryOptions options;
  int64_t gpu_bytes = 0;       // as the driver reports it
  int64_t request_tokens = 0;  // input and output of a usual request
  int gpus_per_node = 8;
  int64_t mean_tokens = 0;  // that a usual request has on average while it runs; 0: all of its own
};

// The layout must have been checked.
MemoryPlan PlanMemory(const MemoryInputs& inputs, const Layout& layout);

// Ranks as processes of one host that share its memory, as `serve` starts them on CPUs: the blocks
// that it allocates. RESOURCE_EXHAUSTED when weights or cache do not fit, INVALID_ARGUMENT for a
// model that the runtime does not serve.
struct HostMemoryInputs {
  const Architecture& model;
  const WeightFormat& weights;
  MemoryOptions options;
  int64_t available_bytes = 0;
  int64_t max_model_len = 0;
};
struct HostMemory {
  int64_t weight_bytes = 0;  // over all ranks
  int64_t kv_bytes_per_token = 0;
  int64_t num_kv_blocks = 0;
};
absl::StatusOr<HostMemory> PlanHostMemory(const HostMemoryInputs& inputs, const Layout& layout);

}  // namespace lockstep::plan
