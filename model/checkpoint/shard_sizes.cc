#include "model/checkpoint/shard_sizes.h"

#include "kernels/base/status_macros.h"
#include "parallel/process_grid.h"

namespace lockstep {
namespace {

int64_t LayerElements(const ModelConfig& config, const ShardedSizes& sizes, int tp, int tp_rank) {
  const int64_t num_heads = QueryHeadsOf(sizes, tp, tp_rank).size();
  const int64_t num_kv_heads = KvHeadsOf(sizes, tp, tp_rank).size();
  const int64_t attention = 2 * (num_heads + num_kv_heads) * config.head_dim * config.hidden_size;
  const int64_t mlp = 3 * IntermediateOf(sizes, tp, tp_rank).size() * config.hidden_size;
  const int64_t norms = 2 * config.hidden_size;
  return attention + mlp + norms;
}

// Embedding, final norm and LM head.
int64_t EdgeElements(const ModelConfig& config, int64_t vocabulary, bool is_first, bool is_last) {
  const int64_t table = vocabulary * config.hidden_size;
  const bool shares_table = is_first && is_last && config.tie_word_embeddings;
  const int64_t num_tables = (is_first ? 1 : 0) + (is_last && !shares_table ? 1 : 0);
  return num_tables * table + (is_last ? config.hidden_size : 0);
}

// attention: what its matrices are quantized to; of kNone they are kept in dtype.
int64_t QuantizedLayerBytes(const ModelConfig& config, int tp, int tp_rank,
                            Quantization quantization, Quantization attention, DType dtype) {
  const ShardedSizes sizes = config.sharded_sizes();
  const int64_t hidden = config.hidden_size;
  const int64_t q_width = QueryHeadsOf(sizes, tp, tp_rank).size() * config.head_dim;
  const int64_t kv_width = KvHeadsOf(sizes, tp, tp_rank).size() * config.head_dim;
  const int64_t inner = IntermediateOf(sizes, tp, tp_rank).size();
  const auto bytes = [&](Quantization kept, int64_t rows, int64_t columns, int64_t num_slices) {
    if (kept == Quantization::kNone) return rows * columns * DTypeBytes(dtype);
    return QuantizedBytes(kept, rows, columns / num_slices, num_slices);
  };
  const int64_t attention_slices = NumKSlices(config.num_heads, tp) / tp;
  const int64_t mlp_slices = NumKSlices(config.intermediate_size, tp) / tp;
  const int64_t norms = 2 * hidden * static_cast<int64_t>(sizeof(float));
  return bytes(attention, q_width + 2 * kv_width, hidden, 1) +
         bytes(attention, hidden, q_width, attention_slices) +
         bytes(quantization, 2 * inner, hidden, 1) +
         bytes(quantization, hidden, inner, mlp_slices) + norms;
}

// A tied table is held twice: rows to copy, and the head, in 8 bits (as it is among fp8 weights).
int64_t QuantizedEdgeBytes(const ModelConfig& config, int64_t vocabulary, bool is_first,
                           bool is_last, Quantization quantization, DType dtype) {
  const int64_t hidden = config.hidden_size;
  int64_t bytes = 0;
  if (is_first) bytes += vocabulary * hidden * DTypeBytes(dtype);
  if (is_last) {
    bytes += quantization == Quantization::kFp8
                 ? vocabulary * hidden * DTypeBytes(dtype)
                 : QuantizedBytes(Quantization::kInt8, vocabulary, hidden, 1);
    bytes += hidden * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<RankShard>> HeldShards(const ModelConfig& config, int tp, int pp,
                                                  const HeldWeights& held) {
  ASSIGN_OR_RETURN(std::vector<RankShard> shards, ShardsOfLayout(config, tp, pp, held.dtype));
  ASSIGN_OR_RETURN(Quantization quantization, config.HeldAs(held.quantization));
  Quantization attention = quantization;
  if (held.keeps_float8 && quantization == Quantization::kNone && config.stored.has_value() &&
      config.stored->is_float8()) {
    quantization = Quantization::kFp8;
    if (!config.stored->spares_attention) attention = quantization;
  }
  const ShardedSizes sizes = config.sharded_sizes();
  for (RankShard& shard : shards) {
    if (quantization == Quantization::kNone) {
      shard.weight_bytes = shard.weight_bytes / DTypeBytes(config.dtype) * DTypeBytes(held.dtype);
      continue;
    }
    shard.weight_bytes =
        shard.layers.size() *
            QuantizedLayerBytes(config, tp, shard.tp_rank, quantization, attention, held.dtype) +
        QuantizedEdgeBytes(config, VocabOf(sizes, tp, shard.tp_rank).size(), shard.stage == 0,
                           shard.stage == pp - 1, quantization, held.dtype);
  }
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
