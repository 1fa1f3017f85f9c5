#include <algorithm>

#include "kernels/cuda/attention_cost.h"
#include "kernels/cuda/attention_layout.h"

namespace lockstep::cuda {

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
  int64_t items = std::max(chunks, decodes);
  if (machine.fixed_splits) {
    // In lists of launches that are about as long as each other; of which the smallest tiles have
    // most.
    const int64_t splits = DivideUp(limits.context_len, kFixedSplitTiles * kAttentionTile);
    const int64_t most_rows = AttentionPartialRows(heads, machine.workspace_bytes);
    int64_t tiles = items;
    if (rows > kAttentionDecodeRows && 2 * splits * rows > most_rows) {
      tiles = std::max(tiles, chunks * rows / kAttentionDecodeRows);
    }
    const int64_t launches =
        std::min(tiles, 2 * limits.num_tokens * group * splits / most_rows + 1);
    const int64_t spare = SpareBlocks(kSpareTurnsOfMany, BlocksOfATurn(machine, true), heads);
    items = std::max(4 * splits * tiles, launches * (tiles + spare + 1));
  } else {
    items += SpareBlocks(kSpareTurnsOfMany, BlocksOfATurn(machine, true), heads);
  }
  return (2 * items + 2) * int64_t{sizeof(AttentionItem)};
}

}  // namespace lockstep::cuda
