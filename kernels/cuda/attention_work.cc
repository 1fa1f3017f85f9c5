#include <algorithm>

#include "kernels/cuda/attention_cost.h"
#include "kernels/cuda/attention_layout.h"

namespace lockstep::cuda {

void AttentionWork::Reserve(int64_t bytes) {
  const size_t items = static_cast<size_t>(bytes) / sizeof(AttentionItem);
  if (memory_.size() < items) memory_.resize(items);
}

namespace {

// Of steps that do not repeat. Partial results fill L launches; one ends where another tile would
// make more rows than fit (two neighbours have more, so that there are at most 2 L such ends) or
// more items than total / L and a tile's (L such ends). Each of these 3 L + 1 launches has room for
// so many items and half as many merges, as a tile that is merged has two items or more: together
// for 1.5 (3 L + 1) (total / L + 1 + a tile's), and headers. Half of that, as the caller counts as
// many merges as items.
int64_t MostItemsOnce(int64_t total, int64_t of_a_tile, int64_t launches) {
  return 3 * total + (3 * launches + 1) * (of_a_tile + 2);
}

}  // namespace

int64_t MostAttentionWork(const AttentionLimits& limits, const AttentionHeads& heads,
                          DType kv_dtype, const AttentionMachine& machine) {
  const int group = heads.num_heads / heads.num_kv_heads;
  const int rows = TileRows(kv_dtype, false);
  const int64_t chunks = DivideUp(limits.num_tokens * group, int64_t{rows}) + limits.num_seqs;
  const int64_t decodes = limits.num_seqs * DivideUp(group, TileRows(kv_dtype, true));
  int64_t items = std::max(chunks, decodes);
  if (machine.fixed_splits) {
    // The smallest tiles have most splits.
    const int64_t splits = DivideUp(limits.context_len, kFixedSplitTiles * kAttentionTile);
    const int64_t most_rows = AttentionPartialRows(heads, machine.workspace_bytes);
    int64_t tiles = items;
    if (rows > kAttentionDecodeRows && 2 * splits * rows > most_rows) {
      tiles = std::max(tiles, chunks * rows / kAttentionDecodeRows);
    }
    const int64_t partial_rows = limits.num_tokens * group * splits;
    const int64_t launches = std::min(tiles, 2 * partial_rows / most_rows + 1);
    const int64_t spare = SpareBlocks(kSpareTurnsOfMany, BlocksOfATurn(machine, true), heads);
    items = std::max(MostItemsOnce(splits * tiles, splits, partial_rows / most_rows + 1),
                     launches * (tiles + spare + 1));
  } else {
    items += SpareBlocks(kSpareTurnsOfMany, BlocksOfATurn(machine, true), heads);
  }
  return (2 * items + 2) * int64_t{sizeof(AttentionItem)};
}

}  // namespace lockstep::cuda
