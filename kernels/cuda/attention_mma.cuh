// Attention over bf16 caches with matrix instructions, for prefill chunks and decodes alike.
//
// The query tokens of a sequence and the heads of one KV head's group are the rows of one matrix,
// row = token * group + head, so that keys and values are read once for the whole group. A block
// takes 16 rows to each of its kRowWarps and walks one split of their context in tiles of
// kAttentionTile tokens (FlashAttention-2, Dao 2023, section 3.1). Where there are few rows, as in
// a decode, kColumnWarps warps share the same rows: each computes all their scores, which is
// cheaper than to exchange them, and its own columns of the result.
//
// A row's arithmetic does not depend on either number, nor on the other rows of its tile: its
// result is the same bits in any batch with the same split_tokens. (Finite keys and values assumed:
// what comes later in the sequence enters with a weight of zero.)
//
// Work: 4 head_dim operations to a row and token. Decode reads 4 head_dim bytes to a token of
// context for `group` rows, far below what the matrix units could do: bound by memory. A tile of 64
// rows reads the same bytes from the second-level cache for 64 rows: bound by matrix instructions,
// and by shared memory, from which every warp reads all of K and V for its 16 rows: 32 head_dim
// operations to 4 head_dim bytes, of which a multiprocessor delivers 128 a cycle.
#pragma once

#include "kernels/cuda/warp_rows.cuh"

namespace lockstep::cuda {

// How a block is cut. Column warps share the same rows, but each has its own columns of the result.
// kBlocks to a multiprocessor at least: what bounds the registers.
template <int kDim, int kRowWarps, int kColumnWarps, int kStages, int kBlocks>
struct MmaShape {
  static constexpr int kRowWarpCount = kRowWarps;
  static constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
  static constexpr int kRows = kRowWarps * kWarpRows;
  static constexpr int kColumns = kDim / kColumnWarps;
  static constexpr int kTilesAhead = kStages - 1;
  static constexpr int kBlocksPerMultiprocessor = kBlocks;
  using Tiles = KvTiles<kDim, kRowWarps * kColumnWarps, kStages>;
  using Rows = WarpRows<kDim, kColumns>;
};

template <typename Shape>
__device__ void WalkSplit(const AttentionParams& p, const RowTile& tile, int first, int end) {
  constexpr int kTile = static_cast<int>(kAttentionTile);
  const int kv_head = static_cast<int>(blockIdx.y);
  typename Shape::Tiles tiles(p, tile.seq, kv_head, first, end);
#pragma unroll
  for (int i = 0; i < Shape::kTilesAhead; ++i) tiles.IssueNext();
  const int warp = threadIdx.x / kWarpSize;
  const int row = tile.first_row + warp % Shape::kRowWarpCount * kWarpRows +
                  static_cast<int>(threadIdx.x) % kWarpSize / 4;
  const int first_column = warp / Shape::kRowWarpCount * Shape::kColumns;
  const int seen_by_all = tile.Position(p, tile.first_row) + 1;
  typename Shape::Rows rows(p, tile, kv_head, row);
  for (int begin = first; begin < end; begin += kTile) {
    const uint4* keys = tiles.Take();
    tiles.IssueNext();
    rows.Walk(keys, tiles.ValuesOf(keys), begin, begin + kTile > seen_by_all, first_column);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = rows.Sum(half);
    const TileRow own = tile.Row(p, kv_head, row + half * 8);
    if (!own.Exists() || own.position < first) continue;
    const RowResult result(p, own.token, own.head, blockIdx.z, own.position < p.split_tokens);
    rows.Write(result, half, sum, first_column, p.head_dim);
  }
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerMultiprocessor)
    AttentionMmaKernel(AttentionParams p) {
  RowTile tile;
  if (!FindRowTile<Shape::kRows>(p, tile)) return;
  const int last_row = min(tile.first_row + Shape::kRows, tile.num_rows) - 1;
  const int first = static_cast<int>(blockIdx.z) * p.split_tokens;
  const int end = min(first + p.split_tokens, tile.Position(p, last_row) + 1);
  if (first < end) WalkSplit<Shape>(p, tile, first, end);
}

}  // namespace lockstep::cuda
