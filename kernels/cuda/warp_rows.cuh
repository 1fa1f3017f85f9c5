// 16 rows of attention in the registers of one warp: what FlashAttention-2 keeps of a row.
#pragma once

#include "kernels/cuda/kv_tiles.cuh"
#include "kernels/cuda/row_tiles.cuh"

namespace lockstep::cuda {

constexpr int kWarpRows = 16;  // of a matrix instruction

// The 16 rows of one warp: queries, softmax and the warp's columns of the result. A lane holds what
// MmaBf16 gives it: of rows g = lane / 4 and g + 8, columns 2 (lane % 4) and the next of each 8.
template <int kDim, int kColumns>
class WarpRows {
 public:
  // `row` is the lane's row g.
  __device__ WarpRows(const AttentionParams& p, const RowTile& tile, int kv_head, int row)
      : scale_log2_(p.scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TileRow own = tile.Row(p, kv_head, row + half * 8);
      positions_[half] = own.position;
      LoadQuery(p, own, half);
    }
  }

  // `keys` and `values` hold positions begin..; a row sees those up to its own, all of them unless
  // `masked`.
  __device__ void Walk(const uint4* keys, const uint4* values, int begin, bool masked,
                       int first_column) {
    float scores[kScoreTiles][4];
    Score(keys, scores);
    if (masked) Mask(scores, begin);
    uint32_t weights[kTokenSteps][4];
    Soften(scores, weights);
    AddValues(values, weights, first_column);
  }

  // Of weights; half 0: row g, half 1: row g + 8. All lanes together.
  __device__ float Sum(int half) const { return QuadSum(sum_[half]); }
  __device__ void Write(const RowResult& result, int half, float sum, int first_column,
                        int head_dim) const {
    const int lane = threadIdx.x % kWarpSize;
    if (first_column == 0 && lane % 4 == 0) result.WriteStats(max_[half], sum);
    const float scale = result.Scale(sum);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const int d = first_column + j * 8;
      if (d >= head_dim) continue;
      result.WritePair(d + lane % 4 * 2, values_[j][half * 2] * scale,
                       values_[j][half * 2 + 1] * scale);
    }
  }

 private:
  static constexpr int kScoreTiles = static_cast<int>(kAttentionTile) / 8;
  static constexpr int kTokenSteps = static_cast<int>(kAttentionTile) / 16;
  using Tile = SharedTile<kDim>;

  __device__ void LoadQuery(const AttentionParams& p, const TileRow& row, int half) {
    const int column = threadIdx.x % 4 * 2;
    const float* q = row.Exists() ? QueryRow(p, row.token, row.head) : nullptr;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      float2 pair = make_float2(0.0f, 0.0f);
      if (q != nullptr && i * 8 < p.head_dim) {
        pair = *reinterpret_cast<const float2*>(q + i * 8 + column);
      }
      query_[i / 2][i % 2 * 2 + half] = PackBf16(pair.x, pair.y);
    }
  }

  // Scores before scaling, of tokens 8 j + column.
  __device__ void Score(const uint4* keys, float (&scores)[kScoreTiles][4]) const {
    const int lane = threadIdx.x % kWarpSize;
    const int token = lane / 16 * 8 + lane % 8;  // matrices: tokens 0-7 (two chunks), tokens 8-15
    const int flip = lane / 8 % 2 ^ Tile::Flip(token);
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j)
      scores[j][0] = scores[j][1] = scores[j][2] = scores[j][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int j = 0; j < kScoreTiles; j += 2) {
        uint32_t k[4];
        LoadMatrix4(k, keys + (j * 8 + token) * Tile::kChunks + (step * 2 ^ flip));
        MmaBf16(scores[j], query_[step], {k[0], k[1]});
        MmaBf16(scores[j + 1], query_[step], {k[2], k[3]});
      }
    }
  }

  __device__ void Mask(float (&scores)[kScoreTiles][4], int begin) const {
    const int column = begin + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kScoreTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + j * 8 + i % 2 > positions_[i / 2]) scores[j][i] = -INFINITY;
      }
    }
  }

  // Scores become weights relative to the rows' new maxima; what was summed so far is rescaled.
  __device__ void Soften(float (&scores)[kScoreTiles][4], uint32_t (&weights)[kTokenSteps][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float tile_max = -INFINITY;
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j) {
        tile_max = fmaxf(tile_max, fmaxf(scores[j][half * 2], scores[j][half * 2 + 1]));
      }
      const float max = fmaxf(max_[half], QuadMax(tile_max) * scale_log2_);
      const float base = max == -INFINITY ? 0.0f : max;  // no token of the split seen so far
      Rescale(half, exp2f(max_[half] - base));
      max_[half] = max;
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j) {
        const float first = exp2f(fmaf(scores[j][half * 2], scale_log2_, -base));
        const float second = exp2f(fmaf(scores[j][half * 2 + 1], scale_log2_, -base));
        sum_[half] += first + second;
        weights[j / 2][j % 2 * 2 + half] = PackBf16(first, second);
      }
    }
  }

  __device__ void Rescale(int half, float factor) {
    sum_[half] *= factor;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      values_[j][half * 2] *= factor;
      values_[j][half * 2 + 1] *= factor;
    }
  }

  __device__ void AddValues(const uint4* values, const uint32_t (&weights)[kTokenSteps][4],
                            int first_column) {
    const int lane = threadIdx.x % kWarpSize;
    const int token = lane % 16;  // matrices: tokens 0-7, 8-15 of a chunk, then of the next
    const int flip = (first_column / kChunkElements + lane / 16) ^ Tile::Flip(token);
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        uint32_t v[4];
        LoadMatrix4Transposed(v, values + (step * 16 + token) * Tile::kChunks + (j ^ flip));
        MmaBf16(values_[j], weights[step], {v[0], v[1]});
        MmaBf16(values_[j + 1], weights[step], {v[2], v[3]});
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
  int positions_[2];
  uint32_t query_[kDim / 16][4];
  float values_[kColumns / 8][4] = {};
  float max_[2] = {-INFINITY, -INFINITY};  // log2
  float sum_[2] = {};                      // this lane's share
};

}  // namespace lockstep::cuda
