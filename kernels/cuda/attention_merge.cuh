// The splits of a row become its result, in ascending order. One warp to a row; reads 4 (head_dim +
// 2) bytes to a split and does a handful of operations with each: bound by memory, of which there
// is little beside the keys and values that a split of at least 256 tokens stands for.
#pragma once

#include "kernels/cuda/attention_params.cuh"

namespace lockstep::cuda {

constexpr int kMergeWarps = 4;  // rows to a block
constexpr int kMaxHeadDim = 256;

__device__ inline float MaxOfSplits(const float2* stats, int splits) {
  float max = -INFINITY;
  for (int s = threadIdx.x % kWarpSize; s < splits; s += kWarpSize) max = fmaxf(max, stats[s].x);
  return WarpMax(max);
}

// An instantiation per number of elements that a lane holds: elements lane, lane + 32, ...
template <int kElements>
__device__ void MergeRow(const AttentionParams& p, int64_t row, int splits) {
  const int lane = threadIdx.x % kWarpSize;
  const float2* stats = p.partial_stats + row * p.max_splits;
  const float* partial = p.partial_values + row * p.max_splits * p.head_dim;
  const float max = MaxOfSplits(stats, splits);
  float sum = 0.0f;
  float values[kElements] = {};
#pragma unroll 4
  for (int s = 0; s < splits; ++s) {
    const float2 stat = stats[s];
    const float weight = exp2f(stat.x - max);
    sum = fmaf(stat.y, weight, sum);
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      const int d = e * kWarpSize + lane;
      if (d < p.head_dim) values[e] = fmaf(partial[s * p.head_dim + d], weight, values[e]);
    }
  }
  const int heads = p.num_heads;
  const RowResult result(p, static_cast<int>(row / heads), static_cast<int>(row % heads), 0, true);
  const float scale = result.Scale(sum);
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int d = e * kWarpSize + lane;
    if (d < p.head_dim) result.Write(d, values[e] * scale);
  }
}

static __global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    AttentionMergeKernel(AttentionParams p) {
  const int64_t row = int64_t{blockIdx.x} * kMergeWarps + threadIdx.x / kWarpSize;
  const int token = static_cast<int>(row / p.num_heads);
  if (token >= p.num_tokens) return;
  const int splits = SplitsAt(p, p.positions[token]);
  if (splits == 1) return;  // written by the split itself
  if (p.context_lens[SequenceOfToken(p, token)] == 0) return;
  if (p.head_dim <= kMaxHeadDim / 2) {
    MergeRow<kMaxHeadDim / 2 / kWarpSize>(p, row, splits);
  } else {
    MergeRow<kMaxHeadDim / kWarpSize>(p, row, splits);
  }
}

}  // namespace lockstep::cuda
