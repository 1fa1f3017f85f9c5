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

#include "kernels/cuda/attention_params.cuh"

namespace lockstep::cuda {

constexpr int kMergeChains = 8;
constexpr int kMergeWarps = kMergeChains;  // to a block
constexpr int kMaxHeadDim = 256;

// Sums of weights and of weighted values; a lane holds elements lane, lane + 32, ...
template <int kElements>
struct MergedSplits {
  float sum = 0.0f;
  float values[kElements] = {};

  // The splits of one chain of a PartialRow, with weights relative to `max`.
  __device__ MergedSplits(const AttentionParams& p, int64_t row, int splits, int chain, float max) {
    const float2* stats = p.partial_stats + row * p.max_splits;
    const float* partial = p.partial_values + row * p.max_splits * p.head_dim;
#pragma unroll 4
    for (int s = chain; s < splits; s += kMergeChains) {
      const float2 stat = stats[s];
      const float weight = exp2f(stat.x - max);
      sum = fmaf(stat.y, weight, sum);
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const int d = e * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
        if (d < p.head_dim) values[e] = fmaf(partial[s * p.head_dim + d], weight, values[e]);
      }
    }
  }

  __device__ void Add(const MergedSplits& other) {
    sum += other.sum;
#pragma unroll
    for (int e = 0; e < kElements; ++e) values[e] += other.values[e];
  }

  __device__ void Write(const AttentionParams& p, int64_t row) const {
    const int token = p.first_token + static_cast<int>(row / p.num_heads);
    const RowResult result(p, token, static_cast<int>(row % p.num_heads), 0, true);
    const float scale = result.Scale(sum);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int d = e * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
      if (d < p.head_dim) result.Write(d, values[e] * scale);
    }
  }
};

// How many splits a PartialRow has left partial results of, 0 when there is nothing to merge. Of
// the batch alone, which was there before the step: it need not wait for earlier kernels.
__device__ inline int SplitsToMerge(const AttentionParams& p, int64_t row) {
  const int token = p.first_token + static_cast<int>(row / p.num_heads);
  if (token >= p.end_token) return 0;
  const int context = p.tokens_are_sequences ? p.context_lens[token] : p.positions[token] + 1;
  const int splits = CeilDiv(context, p.split_tokens);
  if (splits <= 1) return 0;  // written by the split itself
  if (p.tokens_are_sequences) return splits;
  return p.context_lens[SequenceOfToken(p, token)] == 0 ? 0 : splits;
}

__device__ inline float MaxOfSplits(const AttentionParams& p, int64_t row, int splits) {
  const float2* stats = p.partial_stats + row * p.max_splits;
  float max = -INFINITY;
  for (int s = threadIdx.x % kWarpSize; s < splits; s += kWarpSize) max = fmaxf(max, stats[s].x);
  return WarpMax(max);
}

// A warp to a row.
template <int kElements>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize) MergeByWarpsKernel(AttentionParams p) {
  LetLaterKernelsBegin();
  const int64_t row = int64_t{blockIdx.x} * kMergeWarps + threadIdx.x / kWarpSize;
  const int splits = SplitsToMerge(p, row);
  WaitForEarlierKernels();
  if (splits == 0) return;
  const float max = MaxOfSplits(p, row, splits);
  MergedSplits<kElements> merged(p, row, splits, 0, max);
#pragma unroll
  for (int chain = 1; chain < kMergeChains; ++chain) {
    merged.Add(MergedSplits<kElements>(p, row, splits, chain, max));
  }
  merged.Write(p, row);
}

// A block to a row.
template <int kElements>
__global__ void __launch_bounds__(kMergeWarps* kWarpSize) MergeByBlocksKernel(AttentionParams p) {
  __shared__ float of_chain[kMergeChains][kElements + 1][kWarpSize];
  LetLaterKernelsBegin();
  const int64_t row = blockIdx.x;
  const int splits = SplitsToMerge(p, row);
  WaitForEarlierKernels();
  if (splits == 0) return;
  const int chain = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  MergedSplits<kElements> merged(p, row, splits, chain, MaxOfSplits(p, row, splits));
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
