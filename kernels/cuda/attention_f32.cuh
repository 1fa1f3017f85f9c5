// Attention over f32 caches, in f32 throughout: for models that are to be exact rather than fast.
//
// One warp to a row and a split, or several in turn. Scores: a lane to a token, so that the dot
// product needs no exchange; values: a lane to some elements, so that rows of V are read side by
// side; in between the weights go through shared memory. 4 operations to the element of K and V and
// each row reads them for itself, the heads of a group hopefully from the first- or second-level
// cache: bound by those caches' bandwidth.
#pragma once

#include "kernels/cuda/attention_layout.h"
#include "kernels/cuda/row_tiles.cuh"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {

constexpr int kF32Warps = kAttentionF32Rows;
constexpr int kF32Elements = 256 / kWarpSize;  // of a row of V to a lane, at most

// A warp's shared memory.
struct F32Shared {
  float query[256];
  float weights[kAttentionTile];
  uint32_t cached_rows[kAttentionTile];
};

// A warp's row, as far as it has been walked.
class F32Row {
 public:
  __device__ F32Row(const AttentionParams& p, const int32_t* block_table, int token, int head,
                    F32Shared& shared)
      : p_(p),
        block_table_(block_table),
        kv_head_(head / p.group),
        lane_(threadIdx.x % kWarpSize),
        shared_(shared) {
    if (p.qkv_dtype == DType::kF32) {
      Stage(QueryRow<float>(p, token, head));
    } else {
      Stage(QueryRow<BF16>(p, token, head));
    }
    __syncwarp();
  }

  // One tile, positions begin.. of which those below `end` exist.
  __device__ void Walk(int begin, int end) {
    constexpr int kPerLane = kAttentionTile / kWarpSize;
    float scores[kPerLane];
    float tile_max = -INFINITY;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int position = begin + j * kWarpSize + lane_;
      scores[j] = -INFINITY;
      if (position < end) {
        const uint32_t row = CacheRow(p_, block_table_, kv_head_, position);
        shared_.cached_rows[j * kWarpSize + lane_] = row;
        scores[j] = Score(row);
      }
      tile_max = fmaxf(tile_max, scores[j]);
    }
    const float max = fmaxf(max_, WarpMax(tile_max));
    Rescale(exp2f(max_ - max));
    max_ = max;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const float weight = exp2f(scores[j] - max);
      sum_ += weight;
      shared_.weights[j * kWarpSize + lane_] = weight;
    }
    __syncwarp();
    AddValues(min(end - begin, static_cast<int>(kAttentionTile)));
    __syncwarp();  // the next tile's are written
  }

  __device__ void Finish(const RowResult& result) {
    const float sum = WarpSum(sum_);
    if (lane_ == 0) result.WriteStats(max_, sum);
    const float scale = result.Scale(sum);
#pragma unroll
    for (int e = 0; e < kF32Elements; ++e) {
      const int d = e * kWarpSize + lane_;
      if (d < p_.head_dim) result.Write(d, values_[e] * scale);
    }
  }

 private:
  template <typename Q>
  __device__ void Stage(const Q* query) const {
    for (int d = lane_; d < p_.head_dim; d += kWarpSize)
      shared_.query[d] = Load<1>(query + d).of[0];
  }

  __device__ float Score(uint32_t row) const {
    const float* k = static_cast<const float*>(p_.k) + int64_t{row} * p_.head_dim;
    float score = 0.0f;
    for (int d = 0; d < p_.head_dim; d += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(k + d);
      score = fmaf(shared_.query[d], pair.x, score);
      score = fmaf(shared_.query[d + 1], pair.y, score);
    }
    return score * p_.scale_log2;
  }

  __device__ void Rescale(float factor) {
    sum_ *= factor;
#pragma unroll
    for (int e = 0; e < kF32Elements; ++e) values_[e] *= factor;
  }

  // Of the tile's first `count` tokens.
  __device__ void AddValues(int count) {
#pragma unroll 4
    for (int j = 0; j < count; ++j) {
      const float weight = shared_.weights[j];
      const float* v =
          static_cast<const float*>(p_.v) + int64_t{shared_.cached_rows[j]} * p_.head_dim;
#pragma unroll
      for (int e = 0; e < kF32Elements; ++e) {
        const int d = e * kWarpSize + lane_;
        if (d < p_.head_dim) values_[e] = fmaf(weight, v[d], values_[e]);
      }
    }
  }

  const AttentionParams& p_;
  const int32_t* block_table_;
  int kv_head_;
  int lane_;
  F32Shared& shared_;
  float max_ = -INFINITY;  // log2
  float sum_ = 0.0f;       // this lane's share
  float values_[kF32Elements] = {};
};

static __global__ void __launch_bounds__(kF32Warps* kWarpSize)
    AttentionF32Kernel(const __grid_constant__ AttentionParams p) {
  __shared__ F32Shared shared[kF32Warps];
  RowTile tile;
  if (!FindRowTile(p, tile)) return;
  const int warp = threadIdx.x / kWarpSize;
  const int row = tile.first_row() + warp;
  const int position = tile.Position(p, row);
  const int kv_head = static_cast<int>(blockIdx.y);
  for (int i = 0; tile.HasSplit(p, i); ++i) {
    const RowTile split = tile.Split(p, i);
    if (position < split.first()) return;  // none of its context left, or no row
    F32Row walk(p, p.block_tables + split.item.table, split.Token(p, row),
                split.Head(p, kv_head, row), shared[warp]);
    const int end = min(split.end(), position + 1);
    for (int begin = split.first(); begin < end; begin += kAttentionTile) walk.Walk(begin, end);
    walk.Finish(split.ResultOf(p, kv_head, row, position));
  }
}

}  // namespace lockstep::cuda
