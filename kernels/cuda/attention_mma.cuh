// Attention over bf16, f16 and e4m3 caches with matrix instructions, for prefill chunks and
// decodes alike.
//
// The query tokens of a sequence and the heads of one KV head's group are the rows of one matrix,
// row = token * group + head, so that keys and values are read once for the whole group. A block
// takes 16 or 32 rows to each of its kRowWarps and walks a split of their context, or one after the
// other, in tiles of kAttentionTile tokens (FlashAttention-2, Dao 2023, section 3.1). Where there
// are few rows, as in a decode, kColumnWarps warps share them: each computes all their scores,
// which is cheaper than to exchange them, and its own columns of the result.
//
// A row's arithmetic does not depend on any of that, nor on the other rows of its tile: its result
// is the same bits in any batch with the same split_tokens. (Finite keys and values assumed: what
// comes later in the sequence enters with a weight of zero.)
//
// Limits, for head_dim 128 (counted, not measured). A decode reads 32 KiB to a tile; a
// multiprocessor of an H200 gets those in some 1600 cycles, in which each of four schedulers has
// issued a block's 550 instructions: bound by memory, with tiles ahead for its latency. A block of
// 128 rows does 4.2 million operations to a tile: 256 matrix instructions to each scheduler, among
// 1030 in all, and 41 KiB read by its warps four times over, 1300 cycles of shared memory. 32 rows
// to a warp rather than 16 are what keeps that below the matrix units' time; 128 rows to a block
// halve what the second-level cache must deliver, against 64. On Hopper mma.sync reaches some 60 %
// of what wgmma does: attention_wgmma.cuh.
#pragma once

#include <algorithm>

#include "kernels/cuda/query_tile.cuh"
#include "kernels/cuda/warp_rows.cuh"

namespace lockstep::cuda {

// How a block that multiplies T is cut: each of kRowWarps has kMmas times 16 rows; column warps
// share the same rows, but each has its own columns of the result. kBlocks to a multiprocessor at
// least: what bounds the registers. KvTiles: where keys and values come from, as T.
template <typename T, int kDim, int kMmas, int kRowWarps, int kColumnWarps, int kBlocks,
          typename KvTiles>
struct MmaShape {
  using Element = T;
  static constexpr int kHeadDim = kDim;
  static constexpr int kMmasToWarp = kMmas;
  static constexpr int kWarpsOfRows = kRowWarps;
  static constexpr int kThreads = kRowWarps * kColumnWarps * kWarpSize;
  static constexpr int kRows = kRowWarps * kMmas * kMmaRows;
  static constexpr int kColumns = kDim / kColumnWarps;
  static constexpr int kBlocksToMultiprocessor = kBlocks;
  using Tiles = KvTiles;
  using Rows = WarpRows<T, kDim, kColumns, kMmas>;
  // Queries that warps keep in registers lie where a tile comes later.
  static constexpr bool kKeepsQueries = WarpQueries<kDim, kMmas>::kKept;
  static constexpr int kQueries = kKeepsQueries ? Tiles::kIdleAtFirst : Tiles::kSharedBytes;
  static constexpr int kSharedBytes = std::max(Tiles::kSharedBytes, kQueries + kRows * kDim * 2);
  static_assert(kSharedBytes <= 99 << 10);  // all that a block may have on compute capability 8.9
  // Of splits of one tile, to which nothing comes later.
  static constexpr int kOneTileSharedBytes =
      std::max(Tiles::kOneTileBytes, kQueries + kRows * kDim * 2);
};

template <typename Shape>
__device__ void WriteRows(const AttentionParams& p, const RowTile& tile, int row, int first_column,
                          const typename Shape::Rows& rows) {
  const int kv_head = static_cast<int>(blockIdx.y);
#pragma unroll
  for (int m = 0; m < Shape::kMmasToWarp; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = rows.Sum(m, half);
      const int position = rows.Position(m, half);
      if (position < tile.first()) continue;  // none of its context, or no row
      const RowResult result = tile.ResultOf(p, kv_head, row + rows.RowOf(m, half), position);
      rows.Write(m, half, sum, result, first_column, p.head_dim);
    }
  }
}

template <typename Shape>
__device__ void WalkSplit(const AttentionParams& p, const RowTile& tile) {
  constexpr int kTile = static_cast<int>(kAttentionTile);
  constexpr int kRowsToWarp = Shape::kMmasToWarp * kMmaRows;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int first = tile.first();
  const int end = tile.end();
  typename Shape::Tiles tiles(p, tile.item.table, kv_head, first, end);
  // Earlier steps have written what the cache holds of tokens before those of this batch.
  const bool are_old = first + Shape::Tiles::kTilesAhead * kTile <= tile.item.first_position;
  if (!are_old) WaitForEarlierKernels();
#pragma unroll
  for (int i = 0; i < Shape::Tiles::kTilesAhead; ++i) tiles.IssueNext();
  WaitForEarlierKernels();
  uint4* queries = DynamicShared<uint4>() + Shape::kQueries / sizeof(uint4);
  StageQueries<typename Shape::Element, SharedTile<Shape::kHeadDim>, Shape::kHeadDim, Shape::kRows,
               Shape::kThreads>(p, tile, tile.first_row(), kv_head, static_cast<int>(threadIdx.x),
                                queries);
  __syncthreads();

  const int warp = threadIdx.x / kWarpSize;
  const int row_in_tile = warp % Shape::kWarpsOfRows * kRowsToWarp;
  const int first_column = warp / Shape::kWarpsOfRows * Shape::kColumns;
  const int row = tile.first_row() + row_in_tile;
  const int seen_by_all = tile.Position(p, tile.first_row()) + 1;
  typename Shape::Rows rows(p, tile, row,
                            queries + row_in_tile * SharedTile<Shape::kHeadDim>::kChunks);
  for (int begin = first; begin < end; begin += kTile) {
    const uint4* keys = tiles.Take();
    tiles.IssueNext();
    if (row >= tile.num_rows()) continue;  // a decode among chunks leaves most warps without any
    rows.Walk(keys, tiles.ValuesOf(keys), begin, begin + kTile > seen_by_all, first_column);
  }
  WriteRows<Shape>(p, tile, row, first_column, rows);
}

// Blocks that nothing is left for end at once, all but one: a later kernel counts on this one's end
// being that of all before. kSeveral: an item may be several splits. Its item is read anew for
// each, as registers are short while one is walked.
template <typename Shape, bool kSeveral>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksToMultiprocessor)
    AttentionMmaKernel(const __grid_constant__ AttentionParams p) {
  LetLaterKernelsBegin();
  RowTile tile;
  if (!FindRowTile(p, tile)) {
    if (blockIdx.x == 0) WaitForEarlierKernels();
    return;
  }
  if constexpr (kSeveral) {
#pragma unroll 1
    for (int split = 0; tile.HasSplit(p, split); ++split, FindRowTile(p, tile)) {
      if (split > 0) __syncthreads();  // shared memory is used again
      WalkSplit<Shape>(p, tile.Split(p, split));
    }
  } else {
    WalkSplit<Shape>(p, tile);
  }
}

}  // namespace lockstep::cuda
