#include "model/llama/stage_shape.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace lockstep {

absl::StatusOr<StageShape> MakeStageShape(const ModelConfig& config, const ProcessGrid& grid,
                                          int rank) {
  const ShardedSizes sizes = config.sharded_sizes();
  const int tp = grid.tp();
  RETURN_IF_ERROR(CheckLayout(sizes, tp, grid.pp()));
  if (rank < 0 || rank >= grid.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d is outside the grid of %d ranks", rank, grid.world_size()));
  }
  const int stage = grid.stage_of(rank);
  const int tp_rank = grid.tp_rank_of(rank);
  return StageShape{
      .hidden = config.hidden_size,
      .head_dim = config.head_dim,
      .layers = LayersOfStages(sizes, grid.pp())[static_cast<size_t>(stage)],
      .query_heads = QueryHeadsOf(sizes, tp, tp_rank),
      .kv_heads = KvHeadsOf(sizes, tp, tp_rank),
      .intermediate = IntermediateOf(sizes, tp, tp_rank),
      .vocab = VocabOf(sizes, tp, tp_rank),
      .attention_k_slices = NumKSlices(sizes.num_heads, tp) / tp,
      .mlp_k_slices = NumKSlices(sizes.intermediate_size, tp) / tp,
      .is_first = stage == 0,
      .is_last = stage == grid.pp() - 1,
  };
}

}  // namespace lockstep
