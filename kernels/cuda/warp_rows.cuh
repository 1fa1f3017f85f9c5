// Rows of attention in the registers of one warp: what FlashAttention-2 keeps of a row.
#pragma once

#include "kernels/cuda/kv_tiles.cuh"
#include "kernels/cuda/query_tile.cuh"
#include "kernels/cuda/row_tiles.cuh"

namespace lockstep::cuda {

constexpr int kMmaRows = 16;  // of a matrix instruction

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
      if constexpr (kKeepsQueries) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) ReadQuery(m, step, kept_queries_[m][step]);
      }
    }
  }

  // `keys` and `values` hold positions begin..; a row sees those up to its own, all of them unless
  // `masked`.
  __device__ void Walk(const uint4* keys, const uint4* values, int begin, bool masked,
                       int first_column) {
    float scores[kMmas][kScoreTiles][4] = {};
    Score(keys, scores);
    uint32_t weights[kMmas][kTokenSteps][4];
#pragma unroll
    for (int m = 0; m < kMmas; ++m) {
      if (masked) Mask(m, begin, scores[m]);
      Soften(m, scores[m], weights[m]);
    }
    AddValues(values, weights, first_column);
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
  static constexpr int kSteps = kDim / 16;
  static constexpr int kScoreTiles = static_cast<int>(kAttentionTile) / 8;
  static constexpr int kTokenSteps = static_cast<int>(kAttentionTile) / 16;
  // Else they are read again for every tile: registers are short.
  static constexpr bool kKeepsQueries = kMmas == 1;
  using Tile = SharedTile<kDim>;

  // Columns 16 step.. of 16 rows. Matrices: rows 0-7 and 8-15 of a chunk, then of the next.
  __device__ void ReadQuery(int m, int step, uint32_t (&query)[4]) const {
    const int lane = threadIdx.x % kWarpSize;
    const int flip = lane / 16 ^ Tile::Flip(lane % 16);
    LoadMatrix4(query, queries_ + (m * kMmaRows + lane % 16) * Tile::kChunks + (step * 2 ^ flip));
  }

  // Scores before scaling, of tokens 8 j + column. Matrices: tokens 0-7 of two chunks, then 8-15.
  __device__ void Score(const uint4* keys, float (&scores)[kMmas][kScoreTiles][4]) const {
    const int lane = threadIdx.x % kWarpSize;
    const int token = lane / 16 * 8 + lane % 8;
    const int flip = lane / 8 % 2 ^ Tile::Flip(token);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t query[kMmas][4];
#pragma unroll
      for (int m = 0; m < kMmas; ++m) {
        if constexpr (kKeepsQueries) {
#pragma unroll
          for (int i = 0; i < 4; ++i) query[m][i] = kept_queries_[m][step][i];
        } else {
          ReadQuery(m, step, query[m]);
        }
      }
#pragma unroll
      for (int j = 0; j < kScoreTiles; j += 2) {
        uint32_t k[4];
        LoadMatrix4(k, keys + (j * 8 + token) * Tile::kChunks + (step * 2 ^ flip));
#pragma unroll
        for (int m = 0; m < kMmas; ++m) {
          MmaBf16(scores[m][j], query[m], {k[0], k[1]});
          MmaBf16(scores[m][j + 1], query[m], {k[2], k[3]});
        }
      }
    }
  }

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

  // Matrices: tokens 0-7 and 8-15 of a chunk, then of the next.
  __device__ void AddValues(const uint4* values, const uint32_t (&weights)[kMmas][kTokenSteps][4],
                            int first_column) {
    const int lane = threadIdx.x % kWarpSize;
    const int token = lane % 16;
    const int flip = (first_column / kChunkElements + lane / 16) ^ Tile::Flip(token);
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        uint32_t v[4];
        LoadMatrix4Transposed(v, values + (step * 16 + token) * Tile::kChunks + (j ^ flip));
#pragma unroll
        for (int m = 0; m < kMmas; ++m) {
          MmaBf16(values_[m][j], weights[m][step], {v[0], v[1]});
          MmaBf16(values_[m][j + 1], weights[m][step], {v[2], v[3]});
        }
      }
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
  const uint4* queries_;
  uint32_t kept_queries_[kKeepsQueries ? kMmas : 1][kSteps][4];
  int positions_[kMmas][2];
  float values_[kMmas][kColumns / 8][4] = {};
  float max_[kMmas][2];       // log2
  float sum_[kMmas][2] = {};  // this lane's share
};

}  // namespace lockstep::cuda
