// The rows that the blocks of an attention kernel work on: (query token, head of a KV head's group)
// pairs of one sequence, row = token * group + head.
#pragma once

#include "kernels/cuda/attention_params.cuh"

namespace lockstep::cuda {

// What a block works on: rows of a tile, and a split of their context, or several.
struct RowTile {
  AttentionItem item;

  __device__ int first_row() const { return item.first_row; }
  __device__ int num_rows() const { return item.num_rows; }
  __device__ int first() const { return item.first; }
  __device__ int end() const { return item.end; }
  // Of a row, counted from the sequence's first.
  __device__ int Token(const AttentionParams& p, int row) const {
    return item.first_token + row / p.by_group;
  }
  __device__ int Head(const AttentionParams& p, int kv_head, int row) const {
    return (kv_head - row / p.by_group) * p.group + row;
  }
  // Below all that exist for rows that don't.
  __device__ int Position(const AttentionParams& p, int row) const {
    return row < item.num_rows ? item.first_position + row / p.by_group : -1;
  }
  // Where a row's result goes, which sees the context up to `position`.
  __device__ RowResult ResultOf(const AttentionParams& p, int kv_head, int row,
                                int position) const {
    const bool only = item.slot < 0 || (item.first == 0 && position < item.end);
    if (only) return RowResult::Whole(p, Token(p, row) * p.num_heads + Head(p, kv_head, row));
    return RowResult::Partial(p, PartialRow(p, item, kv_head, row - item.first_row));
  }
  // One after the other of its splits.
  __device__ bool HasSplit(const AttentionParams& p, int split) const {
    return item.first + split * LoadFromCache2(&p.header->split_tokens) < item.end;
  }
  __device__ RowTile Split(const AttentionParams& p, int split) const {
    RowTile result = *this;
    const int split_tokens = LoadFromCache2(&p.header->split_tokens);
    result.item.first += split * split_tokens;
    result.item.end = min(item.end, result.item.first + split_tokens);
    if (item.slot >= 0) result.item.slot += split * PartialRows(p, item);
    return result;
  }
};

__device__ inline AttentionItem LoadItem(const AttentionItem* item) {
  const int4 a = LoadFromCache2(reinterpret_cast<const int4*>(item));
  const int4 b = LoadFromCache2(reinterpret_cast<const int4*>(item) + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// False when the block has nothing to do. The list and how long it is are read together; one beyond
// its end is of an earlier step, or nothing.
__device__ inline bool FindRowTile(const AttentionParams& p, RowTile& tile) {
  tile.item = LoadItem(p.items + blockIdx.x);
  return static_cast<int>(blockIdx.x) < LoadFromCache2(&p.header->num_items);
}

}  // namespace lockstep::cuda
