#include <algorithm>

#include "kernels/cuda/attention_cost.h"
#include "kernels/cuda/attention_layout.h"

namespace lockstep::cuda {
namespace {

// Headers, items and merges of all launches of a step that does not repeat, whose partial rows
// would fill `full` launches. Of its launches, fewer than `full` end as they have a full-th of all
// items, and fewer than 2 * full for want of room for the next tile's rows: they have a full-th of
// all rows, or any of them and its next have more than there is room for. One is the last. None has
// more items than a full-th of all, rounded up, and one tile's splits, nor more merges than half of
// that.
int64_t MostListedOnce(int64_t full, int64_t tiles, int64_t splits) {
  const int64_t launches = 3 * full;
  const int64_t all_items = 3 * splits * tiles + launches * (splits + 1);
  return launches + DivideUp<int64_t>(3 * all_items, 2);
}

}  // namespace

void AttentionWork::Reserve(int64_t bytes) {
  const size_t items = static_cast<size_t>(bytes) / sizeof(AttentionItem);
  if (memory_.size() < items) memory_.resize(items);
}

int64_t MostAttentionWork(const AttentionLimits& limits, const AttentionHeads& heads,
                          DType kv_dtype, const AttentionMachine& machine) {
  const int group = heads.num_heads / heads.num_kv_heads;
  const int rows = TileRows(kv_dtype, false);
  const int64_t chunks = DivideUp(limits.num_tokens * group, int64_t{rows}) + limits.num_seqs;
  const int64_t decodes = limits.num_seqs * DivideUp(group, TileRows(kv_dtype, true));
  const int64_t spare = SpareBlocks(kSpareTurnsOfMany, BlocksOfATurn(machine, true), heads);
  int64_t tiles = std::max(chunks, decodes);
  if (!machine.fixed_splits) {
    return (2 * (tiles + spare) + 2) * int64_t{sizeof(AttentionItem)};
  }
  const int64_t splits = DivideUp(limits.context_len, kFixedSplitTiles * kAttentionTile);
  const int64_t most_rows = AttentionPartialRows(heads, machine.workspace_bytes);
  if (rows > kAttentionDecodeRows && 2 * splits * rows > most_rows) {
    tiles = std::max(tiles, chunks * rows / kAttentionDecodeRows);
  }
  const int64_t all_rows = limits.num_tokens * group * splits;
  const int64_t launches = std::min(tiles, 2 * all_rows / most_rows + 1);
  const int64_t repeated = launches * (2 * tiles + spare + 1);
  const int64_t once = MostListedOnce(all_rows / most_rows + 1, tiles, splits);
  return std::max(once, repeated) * int64_t{sizeof(AttentionItem)};
}

}  // namespace lockstep::cuda
