// Bytes of weights on each rank of a layout, and those that a step reads. Pure; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/architecture.h"
#include "deploy/plan/formats.h"
#include "parallel/partition.h"

namespace lockstep::plan {

struct Layout {
  int tp = 1;
  int pp = 1;
  int replicas = 1;
  bool expert_parallel = false;  // experts whole on one of the tp ranks, instead of sliced
  int ranks() const { return tp * pp; }
  int gpus() const { return tp * pp * replicas; }
};

struct RankWeights {
  int stage = 0;
  Range layers;
  int64_t layer_bytes = 0;      // attention, MLP, norms
  int64_t expert_bytes = 0;     // routed experts
  int64_t embedding_bytes = 0;  // on the first stage, or shared with the LM head when tied
  int64_t lm_head_bytes = 0;    // on the last stage
  int64_t total() const { return layer_bytes + expert_bytes + embedding_bytes + lm_head_bytes; }
};

// Can the model be split this way? INVALID_ARGUMENT as CheckLayout, and for experts.
absl::Status CheckModelLayout(const Architecture& model, const Layout& layout);

// In order of rank. For models that the runtime serves, in f32 and bf16, exactly what its ranks
// allocate (model/checkpoint/shard_sizes.h). The layout must have been checked.
std::vector<RankWeights> WeightsOfRanks(const Architecture& model, const WeightFormat& format,
                                        const Layout& layout);

// Of the whole model, once.
double TotalWeightBytes(const Architecture& model, const WeightFormat& format);

}  // namespace lockstep::plan
