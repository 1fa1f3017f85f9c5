// How the context of a batch is cut into splits, and its tokens into launches.
#include <algorithm>

#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kFixedSplitTokens = 1024;
constexpr int64_t kMinSplitTokens = 256;  // below, merging costs as much as it saves
// Decodes of few sequences leave most multiprocessors idle, and a block takes longer to fetch its
// part than the merge to begin: from such contexts on, splits may be single tiles.
constexpr int64_t kFineSplitContext = 512;
// Decodes' splits are no longer than this: of a batch whose longest context is much longer than the
// others, all multiprocessors are to share in the longest. Merging costs a percent.
constexpr int64_t kDecodeSplitTokens = 1024;
// Chunks: a block by wgmma takes some 13 us to walk 1024 tokens, and 5 us to begin and to end.
constexpr int64_t kChunkSplitTokens = 4096;
constexpr int64_t kLongSplitTokens = 16384;  // 0.2 ms
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kWgmmaBlocksPerMultiprocessor = 1;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The fewest splits with which `blocks` times splits fill `slots` about as evenly as any number of
// them up to `most` does. (FlashAttention chooses likewise: num_splits_heuristic in flash_api.cpp.)
int64_t SplitsToFill(int64_t blocks, int64_t slots, int64_t most) {
  const auto efficiency = [&](int64_t splits) {
    const int64_t work = blocks * splits;
    return static_cast<double>(work) / static_cast<double>(CeilDiv(work, slots) * slots);
  };
  double best = 0.0;
  for (int64_t splits = 1; splits <= most; ++splits) best = std::max(best, efficiency(splits));
  int64_t splits = 1;
  while (efficiency(splits) < 0.95 * best) ++splits;
  return splits;
}

bool AreEnough(int64_t blocks, int64_t slots) { return blocks * 5 >= slots * 4; }

int64_t SplitsOfDecodes(int64_t blocks, int64_t slots, int64_t context) {
  const int64_t shortest = context >= kFineSplitContext ? kAttentionTile : kMinSplitTokens;
  const int64_t most = AreEnough(blocks, slots) ? 1 : context / shortest;
  return std::max(SplitsToFill(blocks, slots, most), CeilDiv(context, kDecodeSplitTokens));
}

// Of a batch in which one sequence may have a much longer context than the others, and a single
// block to each of its KV heads. Those are to end when the others do, which are taken for chunks'
// own splits: the more turns they take, the longer.
int64_t SharedSplitTokens(int64_t blocks, int64_t slots) {
  return std::clamp(kChunkSplitTokens * blocks / slots, kDecodeSplitTokens, kLongSplitTokens);
}

// Blocks that are enough but fill their last turn badly are split, too, where contexts are long.
int64_t SplitsOfChunks(const BatchIndex& batch, int64_t blocks, int64_t slots) {
  const int64_t context = batch.max_context_len;
  const int64_t shortest = AreEnough(blocks, slots) ? kChunkSplitTokens : kMinSplitTokens;
  const int64_t most = blocks < 4 * slots ? context / shortest : 1;
  const int64_t splits = SplitsToFill(blocks, slots, most);
  if (batch.num_seqs == 1) return splits;
  return std::max(splits, CeilDiv(context, SharedSplitTokens(blocks, slots)));
}

// Whole tiles round splits up, by which some multiprocessors may be left without one: then a tile
// less, as long as the longest of them has less to walk and no more splits come of it than `most`,
// nor than a merge reads in a few turns.
int64_t ShorterSplit(int64_t split_tokens, int64_t context, int64_t blocks, int64_t slots,
                     int64_t most) {
  const auto splits = [&](int64_t tiles) { return CeilDiv(context, tiles * kAttentionTile); };
  const auto tiles_to_walk = [&](int64_t tiles) {
    return CeilDiv(blocks * splits(tiles), slots) * tiles;
  };
  constexpr int64_t kMostQuicklyMerged = 64;
  most = std::min(most, kMostQuicklyMerged);
  int64_t tiles = split_tokens / kAttentionTile;
  while (tiles > 1 && splits(tiles - 1) <= most &&
         tiles_to_walk(tiles - 1) < tiles_to_walk(tiles)) {
    --tiles;
  }
  return tiles * kAttentionTile;
}

AttentionPlan PlanOf(int64_t split_tokens, int64_t max_context_len, TensorMapEncoder encode_maps) {
  return {split_tokens, std::max<int64_t>(CeilDiv(max_context_len, split_tokens), 1), encode_maps};
}

// What one split of so many tokens takes of the workspace.
int64_t SplitBytes(int64_t num_tokens, int num_heads, int head_dim) {
  constexpr int64_t kStats = 2;  // a maximum and a sum beside the values
  return num_tokens * num_heads * (head_dim + kStats) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

AttentionPlan PlanAttention(const BatchIndex& batch, const AttentionHeads& heads,
                            int num_multiprocessors, bool fixed_splits,
                            TensorMapEncoder encode_maps) {
  const int64_t context = batch.max_context_len;
  if (fixed_splits) return PlanOf(kFixedSplitTokens, context, encode_maps);
  const bool decode = batch.max_query_len <= 1;
  const int64_t slots =
      int64_t{num_multiprocessors} *
      (decode || encode_maps == nullptr ? kBlocksPerMultiprocessor : kWgmmaBlocksPerMultiprocessor);
  const int group = heads.num_heads / heads.num_kv_heads;
  const int64_t row_tiles =
      decode ? batch.num_seqs
             : std::max(batch.num_seqs, batch.num_tokens * group / kAttentionChunkRows);
  const int64_t blocks = std::max<int64_t>(row_tiles * heads.num_kv_heads, 1);
  const int64_t wanted =
      decode ? SplitsOfDecodes(blocks, slots, context) : SplitsOfChunks(batch, blocks, slots);
  const int64_t split_bytes =
      SplitBytes(std::max<int64_t>(batch.num_tokens, 1), heads.num_heads, heads.head_dim);
  const int64_t most = std::max<int64_t>(kAttentionWorkspaceBytes / split_bytes, 1);
  const int64_t splits = std::clamp<int64_t>(wanted, 1, most);
  int64_t split_tokens =
      CeilDiv(CeilDiv(std::max<int64_t>(context, 1), splits), kAttentionTile) * kAttentionTile;
  if (decode && splits > 1 && context >= kFineSplitContext) {
    split_tokens = ShorterSplit(split_tokens, context, blocks, slots, most);
  }
  return PlanOf(split_tokens, context, encode_maps);
}

int64_t AttentionWorkspaceBytes(const AttentionPlan& plan, int64_t num_tokens, int num_heads,
                                int head_dim) {
  if (plan.max_splits <= 1) return 0;
  return plan.max_splits * SplitBytes(num_tokens, num_heads, head_dim);
}

// As even as can be: the few tokens that are left over by full launches would leave most
// multiprocessors idle. A tile on both sides of a cut would be computed twice; those of a single
// chunk are not.
int64_t AttentionTokensAtOnce(const AttentionPlan& plan, int64_t num_tokens,
                              const AttentionHeads& heads, bool decode, int64_t workspace_bytes) {
  const int64_t token_bytes = AttentionWorkspaceBytes(plan, 1, heads.num_heads, heads.head_dim);
  if (token_bytes == 0) return num_tokens;
  const int64_t most = workspace_bytes / token_bytes;
  if (most >= num_tokens || most == 0) return std::min(most, num_tokens);
  const int64_t tile = kAttentionChunkRows / (heads.num_heads / heads.num_kv_heads);
  const int64_t step = decode || tile == 0 || most < tile ? 1 : tile;
  const int64_t launches = CeilDiv(num_tokens, most / step * step);
  return CeilDiv(CeilDiv(num_tokens, launches), step) * step;
}

}  // namespace lockstep::cuda
