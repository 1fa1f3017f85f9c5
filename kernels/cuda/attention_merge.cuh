// The splits of a row become its result.
//
// Splits s, s + 8, s + 16, ... are one chain; chains are added up each for itself, then one after
// the other: an order that depends on the row's number of splits alone. For the few rows of a
// decode every chain has a warp, so that nobody waits for 32 reads in turn; the many rows of a
// chunk have a warp each. Reads 4 (head_dim + 2) bytes to a split and does a handful of operations
// with each: bound by memory, of which there is little beside the keys and values that a split
// stands for (a quarter where it is a single tile of 64 tokens), and by latency where there are few
// rows.
#pragma once

#include "kernels/cuda/row_tiles.cuh"

namespace lockstep::cuda {

constexpr int kMergeChains = 8;
constexpr int kMergeWarps = kMergeChains;  // to a block
constexpr int kMaxHeadDim = 256;

// A row of a tile with several splits. All of it is of the batch, which was there before the step:
// it need not wait for earlier kernels.
struct MergedRow {
  int first = 0;   // PartialRow of its first split
  int stride = 0;  // from one split's to the next
  int splits = 0;  // that have left partial results; 0: nothing is to be merged
  int out = 0;     // the result's row

  // The block's tile, and of that the row with this number.
  __device__ MergedRow(const AttentionParams& p, int row_in_tile) {
    const RowTile tile = {LoadItem(p.merges + blockIdx.x)};
    if (static_cast<int>(blockIdx.x) >= LoadFromCache2(&p.header->num_merges)) return;
    const int row = tile.first_row() + row_in_tile;
    const int position = tile.Position(p, row);
    if (position < tile.first()) return;  // no row, or written by its only split
    const int kv_head = static_cast<int>(blockIdx.y);
    splits = CeilDiv(position + 1, tile.first());
    first = PartialRow(p, tile.item, kv_head, row_in_tile);
    stride = p.num_kv_heads * PartialRows(p, tile.item);
    out = tile.Token(p, row) * p.num_heads + tile.Head(p, kv_head, row);
  }
  __device__ const float2* Stats(const AttentionParams& p) const { return p.partial_stats + first; }
  __device__ const float* Values(const AttentionParams& p) const {
    return p.partial_values + int64_t{first} * p.head_dim;
  }
};

// Sums of weights and of weighted values; a lane holds elements lane, lane + 32, ...
template <int kElements>
struct MergedSplits {
  float sum = 0.0f;
  float values[kElements] = {};

  // The splits of one chain of a row, with weights relative to `max`.
  __device__ MergedSplits(const AttentionParams& p, const MergedRow& row, int chain, float max) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int stride = row.stride;
    const float2* stats = row.Stats(p) + chain * stride;
    const float* partial = row.Values(p) + int64_t{chain} * stride * p.head_dim + lane;
#pragma unroll 4
    for (int s = chain; s < row.splits; s += kMergeChains) {
      const float2 stat = *stats;
      const float weight = exp2f(stat.x - max);
      sum = fmaf(stat.y, weight, sum);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int d = e * kWarpSize;
        if (d + lane < p.head_dim) values[e] = fmaf(partial[d], weight, values[e]);
      }
      stats += kMergeChains * stride;
      partial += int64_t{kMergeChains} * stride * p.head_dim;
    }
  }

  __device__ void Add(const MergedSplits& other) {
    sum += other.sum;
#pragma unroll
    for (int e = 0; e < kElements; ++e) values[e] += other.values[e];
  }

  __device__ void Write(const AttentionParams& p, const MergedRow& row) const {
    const RowResult result = RowResult::Whole(p, row.out);
    const float scale = result.Scale(sum);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int d = e * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
      if (d < p.head_dim) result.Write(d, values[e] * scale);
    }
  }
};

__device__ inline float MaxOfSplits(const AttentionParams& p, const MergedRow& row) {
  const float2* stats = row.Stats(p);
  const int stride = row.stride;
  float max = -INFINITY;
  for (int s = threadIdx.x % kWarpSize; s < row.splits; s += kWarpSize) {
    max = fmaxf(max, stats[s * stride].x);
  }
  return WarpMax(max);
}

// A warp to a row.
template <int kElements>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    MergeByWarpsKernel(const __grid_constant__ AttentionParams p) {
  LetLaterKernelsBegin();
  const MergedRow row(p, static_cast<int>(blockIdx.z) * kMergeWarps + threadIdx.x / kWarpSize);
  if (row.splits > 0 || blockIdx.x == 0) WaitForEarlierKernels();
  if (row.splits == 0) return;
  const float max = MaxOfSplits(p, row);
  MergedSplits<kElements> merged(p, row, 0, max);
#pragma unroll
  for (int chain = 1; chain < kMergeChains; ++chain) {
    merged.Add(MergedSplits<kElements>(p, row, chain, max));
  }
  merged.Write(p, row);
}

// A block to a row.
template <int kElements>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    MergeByBlocksKernel(const __grid_constant__ AttentionParams p) {
  __shared__ float of_chain[kMergeChains][kElements + 1][kWarpSize];
  LetLaterKernelsBegin();
  const MergedRow row(p, static_cast<int>(blockIdx.z));
  if (row.splits > 0 || blockIdx.x == 0) WaitForEarlierKernels();
  if (row.splits == 0) return;
  const int chain = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  MergedSplits<kElements> merged(p, row, chain, MaxOfSplits(p, row));
#pragma unroll
  for (int e = 0; e < kElements; ++e) of_chain[chain][e][lane] = merged.values[e];
  of_chain[chain][kElements][lane] = merged.sum;
  __syncthreads();
  if (chain != 0) return;
#pragma unroll
  for (int other = 1; other < kMergeChains; ++other) {
#pragma unroll
    for (int e = 0; e < kElements; ++e) merged.values[e] += of_chain[other][e][lane];
    merged.sum += of_chain[other][kElements][lane];
  }
  merged.Write(p, row);
}

}  // namespace lockstep::cuda
