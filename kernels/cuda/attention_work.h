// What a block of the attention kernels has to do, as the host lays it out and blocks read it.
#pragma once

#include <cstdint>

namespace lockstep::cuda {

// Splits of one tile of rows, one after the other; mostly there is one. A row is a query token of
// one head of a KV head's group, row = token * group + head, counted from the sequence's first; a
// tile has up to tile_rows of them. Every KV head has a block with it.
struct alignas(32) AttentionItem {
  int32_t table = 0;           // in block_tables, where the sequence's begins
  int32_t first_token = 0;     // of the sequence, in the batch
  int32_t first_position = 0;  // of that token
  int32_t num_rows = 0;        // of the sequence
  int32_t first_row = 0;       // of the tile
  int32_t first = 0;           // position, where the first split begins
  int32_t end = 0;             // below which the last ends, as does what the tile's last row sees
  // Where the first split's partial results begin, in rows: each split has as many as the tile.
  // Below 0: the tile has a single split.
  int32_t slot = -1;
};
// A tile with several splits, to be merged: the same, but for `first`, which is the tokens of a
// split, `end`, which is not used, and the slot of the first of its splits.
using AttentionMerge = AttentionItem;

// Of the work of one launch of the kernel: what there is of both, which follow in arrays of as many
// as there is room for: items, then merges.
struct alignas(32) AttentionHeader {
  int32_t num_items = 0;
  int32_t num_merges = 0;
  int32_t split_tokens = 0;  // of all splits but a tile's last
};

static_assert(sizeof(AttentionItem) == 32 && sizeof(AttentionHeader) == 32);

}  // namespace lockstep::cuda
