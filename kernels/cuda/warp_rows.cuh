// Rows of attention in the registers of one warp: what FlashAttention-2 keeps of a row.
#pragma once

#include "kernels/cuda/row_tiles.cuh"
#include "kernels/cuda/tile_products.cuh"

namespace lockstep::cuda {

// kMmas times 16 rows of one warp: softmax and the warp's kColumns columns of the result. Of each
// 16 a lane holds what MmaBf16 gives it: of rows g = lane / 4 ("half 0") and g + 8 ("half 1"),
// columns 2 (lane % 4) and the next of each 8.
template <int kDim, int kColumns, int kMmas>
class WarpRows {
 public:
  // `row`: the warp's first, counted from the sequence's first; `queries`: of that row.
  __device__ WarpRows(const AttentionParams& p, const RowTile& tile, int row, const uint4* queries)
      : scale_log2_(p.scale_log2), queries_(queries) {
#pragma unroll
    for (int m = 0; m < kMmas; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        positions_[m][half] = tile.Position(p, row + RowOf(m, half));
        max_[m][half] = -INFINITY;
      }
    }
  }

  // `keys` and `values` hold positions begin..; a row sees those up to its own, all of them unless
  // `masked`.
  __device__ void Walk(const uint4* keys, const uint4* values, int begin, bool masked,
                       int first_column) {
    float scores[kMmas][kScoreTiles][4] = {};
    MultiplyQueriesWithKeys(queries_, keys, scores);
    uint32_t weights[kMmas][kTokenSteps][4];
#pragma unroll
    for (int m = 0; m < kMmas; ++m) {
      if (masked) Mask(m, begin, scores[m]);
      Soften(m, scores[m], weights[m]);
    }
    AddWeightedValues<kDim>(weights, values, first_column, values_);
  }

  // Counted from the warp's first.
  __device__ static int RowOf(int m, int half) {
    return m * kMmaRows + half * 8 + static_cast<int>(threadIdx.x) % kWarpSize / 4;
  }
  __device__ int Position(int m, int half) const { return positions_[m][half]; }
  // Of weights. All lanes together.
  __device__ float Sum(int m, int half) const { return QuadSum(sum_[m][half]); }
  __device__ void Write(int m, int half, float sum, const RowResult& result, int first_column,
                        int head_dim) const {
    const int lane = threadIdx.x % kWarpSize;
    if (first_column == 0 && lane % 4 == 0) result.WriteStats(max_[m][half], sum);
    const float scale = result.Scale(sum);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int d = first_column + j * 8;
      if (d >= head_dim) continue;
      const float* values = values_[m][j] + half * 2;
      result.WritePair(d + lane % 4 * 2, values[0] * scale, values[1] * scale);
    }
  }

 private:
  __device__ void Mask(int m, int begin, float (&scores)[kScoreTiles][4]) const {
    const int column = begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + j * 8 + i % 2 > positions_[m][i / 2]) scores[j][i] = -INFINITY;
      }
    }
  }

  // Scores become weights relative to the rows' new maxima; what was summed so far is rescaled.
  // Maxima are finite: every row that counts sees its split's first token.
  __device__ void Soften(int m, const float (&scores)[kScoreTiles][4],
                         uint32_t (&weights)[kTokenSteps][4]) {
    float factors[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float max = -INFINITY;
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j) {
        max = fmaxf(max, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
      }
      max = fmaxf(max_[m][half], QuadMax(max) * scale_log2_);
      factors[half] = Exp2(max_[m][half] - max);
      max_[m][half] = max;
    }
    // Most tiles of a long context have no new maximum, and a factor of 1 changes nothing.
    if (__any_sync(kWholeWarp, factors[0] != 1.0f || factors[1] != 1.0f)) Rescale(m, factors);
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float max = max_[m][half];
        const float first = Exp2(fmaf(scores[j][half * 2], scale_log2_, -max));
        const float second = Exp2(fmaf(scores[j][half * 2 + 1], scale_log2_, -max));
        sum_[m][half] += first + second;
        weights[j / 2][j % 2 * 2 + half] = PackBf16(first, second);
      }
    }
  }

  __device__ void Rescale(int m, const float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sum_[m][half] *= factors[half];
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) values_[m][j][i] *= factors[i / 2];
    }
  }

  // Over the four lanes that share a row.
  __device__ static float QuadMax(float x) {
    x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 1));
    return fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 2));
  }
  __device__ static float QuadSum(float x) {
    x += __shfl_xor_sync(kWholeWarp, x, 1);
    return x + __shfl_xor_sync(kWholeWarp, x, 2);
  }

  float scale_log2_;
  WarpQueries<kDim, kMmas> queries_;
  int positions_[kMmas][2];
  float values_[kMmas][kColumns / 8][4] = {};
  float max_[kMmas][2];       // log2
  float sum_[kMmas][2] = {};  // this lane's share
};

}  // namespace lockstep::cuda
