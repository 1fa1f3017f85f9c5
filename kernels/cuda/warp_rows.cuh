// Rows of attention in the registers of one warp: queries, softmax and values.
#pragma once

#include "kernels/cuda/row_tiles.cuh"
#include "kernels/cuda/softmax_rows.cuh"
#include "kernels/cuda/tile_products.cuh"

namespace lockstep::cuda {

// kMmas times 16 rows of one warp: softmax and the warp's kColumns columns of the result, which lie
// in a lane as SoftmaxRows says of scores.
template <typename T, int kDim, int kColumns, int kMmas>
class WarpRows {
 public:
  // `row`: the warp's first, counted from the sequence's first; `queries`: of that row.
  __device__ WarpRows(const AttentionParams& p, const RowTile& tile, int row, const uint4* queries)
      : scale_log2_(p.scale_log2), queries_(queries) {
#pragma unroll
    for (int m = 0; m < kMmas; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        softmax_[m].Begin(half, tile.Position(p, row + RowOf(m, half)));
      }
    }
  }

  // `keys` and `values` hold positions begin..; a row sees those up to its own, all of them unless
  // `masked`.
  __device__ void Walk(const uint4* keys, const uint4* values, int begin, bool masked,
                       int first_column) {
    float scores[kMmas][kScoreTiles][4] = {};
    MultiplyQueriesWithKeys<T>(queries_, keys, scores);
    uint32_t weights[kMmas][kTokenSteps][4];
#pragma unroll
    for (int m = 0; m < kMmas; ++m) {
      if (masked) softmax_[m].Mask(begin, scores[m]);
      float factors[2];
      softmax_[m].Raise(scores[m], scale_log2_, factors);
      if (Softmax::Changes(factors)) {
        softmax_[m].RescaleSums(factors);
        Softmax::Rescale(factors, values_[m]);
      }
      softmax_[m].Soften(scores[m], scale_log2_);
      Softmax::template PackWeights<T>(scores[m], weights[m]);
    }
    AddWeightedValues<T, kDim>(weights, values, first_column, values_);
  }

  // Counted from the warp's first.
  __device__ static int RowOf(int m, int half) {
    return m * kMmaRows + half * 8 + static_cast<int>(threadIdx.x) % kWarpSize / 4;
  }
  __device__ int Position(int m, int half) const { return softmax_[m].LastToken(half); }
  // Of weights. All lanes together.
  __device__ float Sum(int m, int half) const { return softmax_[m].Sum(half); }
  __device__ void Write(int m, int half, float sum, const RowResult& result, int first_column,
                        int head_dim) const {
    WriteHalfRow(result, half, softmax_[m].Max(half), sum, first_column, head_dim, values_[m]);
  }

 private:
  using Softmax = SoftmaxRows<kScoreTiles>;

  float scale_log2_;
  WarpQueries<kDim, kMmas> queries_;
  Softmax softmax_[kMmas];
  float values_[kMmas][kColumns / 8][4] = {};
};

}  // namespace lockstep::cuda
