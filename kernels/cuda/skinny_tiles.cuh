// What products of few rows are made of: tiles of 16 outputs by 8 rows of x, for tensor cores.
//
// As a sum may take its k in any order, a lane takes 16 bytes of W's row as they lie, and the same
// k of x's, in place of those the instruction speaks of: it reads back from shared memory what lies
// where a lane has had it copied.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/skinny_gemm.h"

namespace lockstep::cuda {

constexpr int kTileOutputs = 16;
constexpr int kTileRows = 8;
constexpr int kQuad = 4;  // lanes that read a row together, 64 bytes at a time
constexpr int kMultiprocessorSharedBytes = 228 << 10;  // 9.0, of which each block takes 1 KiB
constexpr int kMultiprocessorThreads = 2048;
constexpr int kMaxSharedBytes = 160 << 10;  // of a block's 163 KiB (8.0) and 227 KiB (9.0)

// Is this block among the first that find room, so many to a multiprocessor? Others begin when x is
// there.
__device__ inline bool MayBeginEarly(const SkinnyProduct& p, int to_multiprocessor) {
  const int64_t block = int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  return block < int64_t{p.num_multiprocessors} * to_multiprocessor;
}

// x of T, W of T or e4m3.
template <typename T, bool kFp8>
struct SkinnyTiles {
  static constexpr int kElements = kFp8 ? 16 : 8;  // of W to 16 bytes
  static constexpr int kInputReads = kElements / 8;
  static constexpr int kStep = kQuad * kElements;  // of k, to a tile
  using Weights = uint4[2][kWarpSize];             // the upper and the lower 8 outputs
  using Inputs = uint4[kInputReads][kWarpSize];
  // A lane's weights as pairs of T.
  struct Pairs {
    uint32_t upper[kElements / 2];
    uint32_t lower[kElements / 2];
  };

  __device__ static int Lane() { return threadIdx.x % kWarpSize; }

  // By a warp; zeros beyond the ends. in_features is a multiple of kElements, and so is each lane's
  // k.
  __device__ static void FetchWeights(const SkinnyProduct& p, int64_t first_output, int64_t k,
                                      int64_t end, Weights& to) {
    constexpr int kWeightBytes = kFp8 ? 1 : 2;
    k += Lane() % kQuad * kElements;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t row = first_output + i * 8 + Lane() / kQuad;
      CopyAsync16(&to[i][Lane()],
                  static_cast<const uint8_t*>(p.w) + (row * p.in_features + k) * kWeightBytes,
                  k < end && row < p.out_features);
    }
  }
  // Has what lies in a row of W from k to `end`, or p.prefetched_bytes of it, fetched into the
  // second-level cache.
  __device__ static void PrefetchWeights(const SkinnyProduct& p, int64_t row, int64_t k,
                                         int64_t end) {
    constexpr int kWeightBytes = kFp8 ? 1 : 2;
    const int64_t bytes = min((end - k) * kWeightBytes, p.prefetched_bytes);
    if (row >= p.out_features || bytes <= 0) return;
    PrefetchToCache2(static_cast<const uint8_t*>(p.w) + (row * p.in_features + k) * kWeightBytes,
                     static_cast<uint32_t>(bytes));
  }
  // Lanes that follow each other copy what follows in memory: of e4m3's k a lane has 32 bytes of x,
  // whose halves, copied by itself in turn, would be asked of the cache as if they were whole.
  __device__ static void FetchInputs(const SkinnyProduct& p, int64_t first_row, int64_t k,
                                     int64_t end, Inputs& to) {
    constexpr int kToRow = kQuad * kInputReads;  // of 16 bytes
    const int piece = Lane() % kToRow;
    k += piece * 8;
#pragma unroll
    for (int i = 0; i < kInputReads; ++i) {
      const int tile_row = i * (kWarpSize / kToRow) + Lane() / kToRow;
      const int64_t row = first_row + tile_row;
      const auto* from = static_cast<const uint16_t*>(p.x) + row * p.in_features + k;
      const int reader = tile_row * kQuad + piece / kInputReads;
      CopyAsync16(&to[piece % kInputReads][PlaceOf(piece % kInputReads, reader)], from,
                  k < end && row < p.num_rows);
    }
  }
  // What this lane multiplies.
  __device__ static void ReadInputs(const Inputs& inputs, uint4 (&to)[kInputReads]) {
#pragma unroll
    for (int i = 0; i < kInputReads; ++i) to[i] = inputs[i][PlaceOf(i, Lane())];
  }

  __device__ static Pairs PairsOf(const Weights& weights) {
    Pairs pairs;
    Expand(LoadSharedVector(&weights[0][Lane()]), pairs.upper);
    Expand(LoadSharedVector(&weights[1][Lane()]), pairs.lower);
    return pairs;
  }

  // Of a lane's elements the first two and the next two are columns 2t, 2t + 1 and 2t + 8, 2t + 9
  // of the first instruction, and so on.
  __device__ static void Multiply(const Pairs& w, const uint4 (&x)[kInputReads], float (&sums)[4]) {
#pragma unroll
    for (int pair = 0; pair < kElements / 2; pair += 2) {
      const uint32_t a[4] = {w.upper[pair], w.lower[pair], w.upper[pair + 1], w.lower[pair + 1]};
      const uint4& read = x[pair / 4];
      const uint32_t b[2] = {WordOf(read, pair % 4), WordOf(read, pair % 4 + 1)};
      Mma<T>(sums, a, b);
    }
  }

  // Where a lane's sum i lies in the tile.
  __device__ static int OutputOf(int i) { return i / 2 * 8 + Lane() / kQuad; }
  __device__ static int RowOf(int i) { return Lane() % kQuad * 2 + i % 2; }

 private:
  // Of a lane's i-th 16 bytes of x: both halves of a row's are in different banks.
  __device__ static int PlaceOf(int i, int lane) { return i == 0 ? lane : lane ^ kQuad; }
  __device__ static uint32_t WordOf(const uint4& read, int i) {
    return i == 0 ? read.x : i == 1 ? read.y : i == 2 ? read.z : read.w;
  }
  __device__ static void Expand(const uint4& read, uint32_t (&pairs)[kElements / 2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kFp8) {
        ExpandE4m3<T>(WordOf(read, i), pairs[2 * i], pairs[2 * i + 1]);
      } else {
        pairs[i] = WordOf(read, i);
      }
    }
  }
};

}  // namespace lockstep::cuda
