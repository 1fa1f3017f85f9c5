#include "model/checkpoint/shard_sizes.h"

#include <algorithm>
#include <map>

#include "kernels/base/status_macros.h"
#include "parallel/process_grid.h"

namespace lockstep {
namespace {

int64_t LayerElements(const ModelConfig& config, const ShardedSizes& sizes, int tp, int tp_rank) {
  const int64_t num_heads = QueryHeadsOf(sizes, tp, tp_rank).size();
  const int64_t num_kv_heads = KvHeadsOf(sizes, tp, tp_rank).size();
  const int64_t attention = 2 * (num_heads + num_kv_heads) * config.head_dim * config.hidden_size;
  const int64_t mlp = 3 * IntermediateOf(sizes, tp, tp_rank).size() * config.hidden_size;
  return attention + mlp + config.num_vector_elements(num_heads, num_kv_heads);
}

// Embedding, final norm and LM head.
int64_t EdgeElements(const ModelConfig& config, int64_t vocabulary, bool is_first, bool is_last) {
  const int64_t table = vocabulary * config.hidden_size;
  const bool shares_table = is_first && is_last && config.tie_word_embeddings;
  const int64_t num_tables = (is_first ? 1 : 0) + (is_last && !shares_table ? 1 : 0);
  return num_tables * table + (is_last ? config.hidden_size : 0);
}

// A rank's matrix that products read, of some of the checkpoint's.
struct HeldMatrix {
  LayerMatrixSet parts = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t num_slices = 1;  // into which the columns of all ranks are cut
};

class HeldBytes {
 public:
  HeldBytes(const ModelConfig& config, int tp, const HeldWeights& held)
      : config_(config), sizes_(config.sharded_sizes()), tp_(tp), held_(held) {}

  int64_t Of(const RankShard& shard, int pp) const {
    return LayersBytes(shard) + EdgeBytes(shard.tp_rank, shard.stage == 0, shard.stage == pp - 1);
  }

 private:
  // Layers of which the same is spared take as much.
  int64_t LayersBytes(const RankShard& shard) const {
    std::map<LayerMatrixSet, int64_t> num_layers;
    for (int64_t layer = shard.layers.begin; layer < shard.layers.end; ++layer) {
      ++num_layers[config_.stored.has_value() ? config_.stored->spared.Of(layer) : 0];
    }
    int64_t bytes = 0;
    for (const auto& [spared, count] : num_layers) {
      bytes += count * LayerBytes(shard.tp_rank, spared);
    }
    return bytes;
  }

  int64_t LayerBytes(int tp_rank, LayerMatrixSet spared) const {
    const int64_t hidden = config_.hidden_size;
    const int64_t num_heads = QueryHeadsOf(sizes_, tp_, tp_rank).size();
    const int64_t num_kv_heads = KvHeadsOf(sizes_, tp_, tp_rank).size();
    const int64_t q_width = num_heads * config_.head_dim;
    const int64_t kv_width = num_kv_heads * config_.head_dim;
    const int64_t inner = IntermediateOf(sizes_, tp_, tp_rank).size();
    using enum LayerMatrix;
    const HeldMatrix matrices[] = {
        {SetOf({kQ, kK, kV}), q_width + 2 * kv_width, hidden},
        {SetOf({kO}), hidden, q_width, NumKSlices(config_.num_heads, tp_)},
        {SetOf({kGate, kUp}), 2 * inner, hidden},
        {SetOf({kDown}), hidden, inner, NumKSlices(config_.intermediate_size, tp_)}};
    int64_t bytes = VectorBytes(config_.num_vector_elements(num_heads, num_kv_heads));
    for (const HeldMatrix& matrix : matrices) bytes += BytesOf(matrix, spared);
    return bytes;
  }

  int64_t BytesOf(const HeldMatrix& matrix, LayerMatrixSet spared) const {
    const Quantization kept = KeptAs(matrix, spared);
    if (kept == Quantization::kNone) return matrix.rows * matrix.columns * DTypeBytes(held_.dtype);
    const int64_t num_slices = SlicesOfRank(matrix);
    return QuantizedBytes(kept, matrix.rows, matrix.columns / num_slices, num_slices);
  }

  int64_t SlicesOfRank(const HeldMatrix& matrix) const {
    return std::max<int64_t>(1, matrix.num_slices / tp_);
  }

  // As a StageLoader does: what is spared becomes what is asked for, and where that is nothing, has
  // the other parts of the same product become numbers, too.
  Quantization KeptAs(const HeldMatrix& matrix, LayerMatrixSet spared) const {
    if (!config_.stored.has_value() || HasAll(spared, matrix.parts)) {
      return held_.quantization;
    }
    const bool spares_some = (spared & matrix.parts) != 0;
    if (spares_some && held_.quantization == Quantization::kNone) return Quantization::kNone;
    const bool stays_float8 =
        held_.keeps_float8 && config_.stored->is_float8() && SuitsFp8(matrix.rows, matrix.columns);
    if (stays_float8) return Quantization::kFp8;
    const int64_t slice_k = matrix.columns / SlicesOfRank(matrix);
    const Quantization native =
        config_.stored->native(slice_k * matrix.num_slices, matrix.num_slices);
    return native == Quantization::kNone ? held_.quantization : native;
  }

  // A tied table is held twice: rows to copy, and the head.
  int64_t EdgeBytes(int tp_rank, bool is_first, bool is_last) const {
    const int64_t rows = VocabOf(sizes_, tp_, tp_rank).size();
    const int64_t table = rows * config_.hidden_size * DTypeBytes(held_.dtype);
    const Quantization head = HeadQuantization(*config_.HeldAs(held_.quantization));
    const int64_t head_bytes =
        head == Quantization::kNone ? table : QuantizedBytes(head, rows, config_.hidden_size, 1);
    return (is_first ? table : 0) + (is_last ? head_bytes + VectorBytes(config_.hidden_size) : 0);
  }

  static int64_t VectorBytes(int64_t elements) {
    return elements * static_cast<int64_t>(sizeof(float));
  }

  const ModelConfig& config_;
  const ShardedSizes sizes_;
  const int tp_;
  const HeldWeights held_;
};

}  // namespace

absl::StatusOr<std::vector<RankShard>> HeldShards(const ModelConfig& config, int tp, int pp,
                                                  const HeldWeights& held) {
  ASSIGN_OR_RETURN(std::vector<RankShard> shards,
                   ShardsOfLayout(config, tp, pp, held.fp8_cache ? DType::kE4M3 : held.dtype));
  RETURN_IF_ERROR(config.HeldAs(held.quantization).status());
  const HeldBytes bytes(config, tp, held);
  for (RankShard& shard : shards) shard.weight_bytes = bytes.Of(shard, pp);
  return shards;
}

absl::StatusOr<std::vector<RankShard>> ShardsOfLayout(const ModelConfig& config, int tp, int pp,
                                                      DType kv_dtype) {
  const ShardedSizes sizes = config.sharded_sizes();
  RETURN_IF_ERROR(CheckLayout(sizes, tp, pp));
  ASSIGN_OR_RETURN(const ProcessGrid grid, ProcessGrid::Create(tp, pp));
  const std::vector<Range> layers = LayersOfStages(sizes, pp);
  std::vector<RankShard> shards(grid.world_size());
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    RankShard& shard = shards[rank];
    shard.rank = rank;
    shard.stage = grid.stage_of(rank);
    shard.tp_rank = grid.tp_rank_of(rank);
    shard.layers = layers[shard.stage];
    const int64_t edge = EdgeElements(config, VocabOf(sizes, tp, shard.tp_rank).size(),
                                      shard.stage == 0, shard.stage == pp - 1);
    const int64_t elements =
        shard.layers.size() * LayerElements(config, sizes, tp, shard.tp_rank) + edge;
    shard.weight_bytes = elements * DTypeBytes(config.dtype);
    shard.kv_bytes_per_token = 2 * shard.layers.size() *
                               KvHeadsOf(sizes, tp, shard.tp_rank).size() * config.head_dim *
                               DTypeBytes(kv_dtype);
  }
  return shards;
}

int64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype) {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim * DTypeBytes(kv_dtype);
}

}  // namespace lockstep
