// The two products of a warp's rows with a tile in shared memory: queries with keys, weights with
// values, all of T. kMmas times 16 rows share what is read of the tile.
#pragma once

#include "kernels/cuda/kv_tiles.cuh"

namespace lockstep::cuda {

constexpr int kMmaRows = 16;                                        // of a matrix instruction
constexpr int kScoreTiles = static_cast<int>(kAttentionTile) / 8;   // of 8 tokens
constexpr int kTokenSteps = static_cast<int>(kAttentionTile) / 16;  // of 16 tokens

// The queries of a warp's rows as matrix instructions take them, from shared memory: 16 rows are
// kept in registers; more are read again for every tile, as registers are short.
template <int kDim, int kMmas>
class WarpQueries {
 public:
  static constexpr bool kKept = kMmas == 1;  // in registers, from the beginning on

  __device__ explicit WarpQueries(const uint4* shared) : shared_(shared) {
    if constexpr (kKept) {
#pragma unroll
      for (int step = 0; step < kDim / 16; ++step) Load(0, step, kept_[step]);
    }
  }

  // Columns 16 step.. of all rows.
  __device__ void Read(int step, uint32_t (&queries)[kMmas][4]) const {
    if constexpr (kKept) {
#pragma unroll
      for (int i = 0; i < 4; ++i) queries[0][i] = kept_[step][i];
    } else {
#pragma unroll
      for (int m = 0; m < kMmas; ++m) Load(m, step, queries[m]);
    }
  }

 private:
  // Matrices: rows 0-7 and 8-15 of a chunk, then of the next.
  __device__ void Load(int m, int step, uint32_t (&query)[4]) const {
    using Tile = SharedTile<kDim>;
    const int lane = threadIdx.x % kWarpSize;
    const int flip = lane / 16 ^ Tile::Flip(lane % 16);
    LoadMatrix4(query, shared_ + (m * kMmaRows + lane % 16) * Tile::kChunks + (step * 2 ^ flip));
  }

  const uint4* shared_;
  uint32_t kept_[kKept ? kDim / 16 : 1][4];
};

// scores, of tokens 8 j + column, += queries times keys. Matrices: tokens 0-7 of two chunks, then
// tokens 8-15.
template <typename T, int kDim, int kMmas>
__device__ void MultiplyQueriesWithKeys(const WarpQueries<kDim, kMmas>& queries, const uint4* keys,
                                        float (&scores)[kMmas][kScoreTiles][4]) {
  using Tile = SharedTile<kDim>;
  const int lane = threadIdx.x % kWarpSize;
  const int token = lane / 16 * 8 + lane % 8;
  const int flip = lane / 8 % 2 ^ Tile::Flip(token);
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t query[kMmas][4];
    queries.Read(step, query);
#pragma unroll
    for (int j = 0; j < kScoreTiles; j += 2) {
      uint32_t k[4];
      LoadMatrix4(k, keys + (j * 8 + token) * Tile::kChunks + (step * 2 ^ flip));
#pragma unroll
      for (int m = 0; m < kMmas; ++m) {
        Mma<T>(scores[m][j], query[m], {k[0], k[1]});
        Mma<T>(scores[m][j + 1], query[m], {k[2], k[3]});
      }
    }
  }
}

// sums, of columns first_column + 8 j.., += weights times values. Matrices: tokens 0-7 and 8-15 of
// a chunk, then of the next.
template <typename T, int kDim, int kMmas, int kColumnTiles>
__device__ void AddWeightedValues(const uint32_t (&weights)[kMmas][kTokenSteps][4],
                                  const uint4* values, int first_column,
                                  float (&sums)[kMmas][kColumnTiles][4]) {
  using Tile = SharedTile<kDim>;
  const int lane = threadIdx.x % kWarpSize;
  const int token = lane % 16;
  const int flip = (first_column / kChunkElements + lane / 16) ^ Tile::Flip(token);
#pragma unroll
  for (int step = 0; step < kTokenSteps; ++step) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; j += 2) {
      uint32_t v[4];
      LoadMatrix4Transposed(v, values + (step * 16 + token) * Tile::kChunks + (j ^ flip));
#pragma unroll
      for (int m = 0; m < kMmas; ++m) {
        Mma<T>(sums[m][j], weights[m][step], {v[0], v[1]});
        Mma<T>(sums[m][j + 1], weights[m][step], {v[2], v[3]});
      }
    }
  }
}

}  // namespace lockstep::cuda
