// Bytes of weights on each rank of a layout, and those that a step reads. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/architecture.h"
#include "deploy/plan/formats.h"
#include "model/checkpoint/shard_sizes.h"
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

// Bytes per weight of a layer's attention and of its MLP: of a checkpoint's own format, the wide
// ones where all matrices are spared (model/spared_matrices.h).
struct LayerFormat {
  double attention = 2.0;
  double mlp = 2.0;
};
LayerFormat FormatOfLayer(const Architecture& model, const WeightFormat& format, int64_t layer);

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

// How `serve` would hold the model in this format, if it can: f32 and bf16, and int8 and int4 of
// unquantized checkpoints (`--quantize`).
std::optional<HeldWeights> HeldByRuntime(const Architecture& model, const WeightFormat& format);
// The same of ranks on GPUs. No integers; fp8 where these multiply it, and there what a checkpoint
// has in FP8 stays so, to which `--quantize fp8` adds the rest. Else what others have quantized
// becomes numbers.
std::optional<HeldWeights> HeldOnGpus(const Architecture& model, const WeightFormat& format,
                                      bool multiply_fp8);

// In order of rank. For what the runtime holds, on GPUs or not, exactly what its ranks allocate
// (model/checkpoint/shard_sizes.h). The layout must have been checked.
std::vector<RankWeights> WeightsOfRanks(const Architecture& model, const WeightFormat& format,
                                        const Layout& layout);

// Of the whole model, once.
double TotalWeightBytes(const Architecture& model, const WeightFormat& format);

}  // namespace lockstep::plan
