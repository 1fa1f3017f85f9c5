// What one rank holds of a Llama: its layers, heads, columns and vocabulary rows, in numbers. Pure.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "parallel/partition.h"
#include "parallel/process_grid.h"

namespace lockstep {

struct StageShape {
  int64_t hidden = 0;
  int64_t head_dim = 0;
  Range layers;  // of the whole model
  Range query_heads;
  Range kv_heads;  // shared with other ranks when tp > num_kv_heads
  Range intermediate;
  Range vocab;
  // This rank's share of the K-slices of the row-parallel products (parallel/partition.h).
  int attention_k_slices = 1;
  int mlp_k_slices = 1;
  bool is_first = false;  // holds the embedding
  bool is_last = false;   // holds the final norm and the LM head

  int64_t q_width() const { return query_heads.size() * head_dim; }
  int64_t kv_width() const { return kv_heads.size() * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// INVALID_ARGUMENT when the model cannot be split this way (CheckLayout) or rank is outside the
// grid.
absl::StatusOr<StageShape> MakeStageShape(const ModelConfig& config, const ProcessGrid& grid,
                                          int rank);

}  // namespace lockstep
