// Keys and values of the paged cache in shared memory, a tile of kAttentionTile tokens at a time,
// fetched in the background while an earlier one is worked on.
#pragma once

#include "kernels/cuda/attention_params.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/query_tile.cuh"

namespace lockstep::cuda {

// A tile of rows of kDim 16-bit elements. Chunk c of row r lies where r's bits flip c's, so that
// the eight rows of a matrix lie in different banks, as do the chunks of a row.
template <int kDim>
struct SharedTile {
  static constexpr int kChunks = kDim / kChunkElements;  // to a row
  static_assert(kChunks == 4 || kChunks == 8 || kChunks == 16);
  static constexpr int kBytes = static_cast<int>(kAttentionTile) * kDim * 2;

  // What is flipped in all chunks of a row. Where a and b have no bit in common, Flip(a + b) is
  // Flip(a) ^ Flip(b): what is known of a row when compiling is not computed later.
  __device__ static constexpr int Flip(int row) { return kChunks == 4 ? row / 2 % 4 : row % 8; }
  __device__ static int Index(int row, int chunk) { return row * kChunks + (chunk ^ Flip(row)); }
};

// What a block copies, tile after tile, into a ring of kStages pairs of tiles.
template <int kDim, int kWarps, int kStages>
class KvTiles {
 public:
  static constexpr int kTilesAhead = kStages - 1;
  static constexpr int kOneTileBytes = 2 * SharedTile<kDim>::kBytes;  // of splits of one tile
  static constexpr int kSharedBytes = kStages * kOneTileBytes;
  // Where nothing is copied before all threads have come to their first Take: the last stage.
  static constexpr int kIdleAtFirst = kSharedBytes - kOneTileBytes;

  // Positions begin.. below `end` exist; the others become zeros, and no memory is read for them.
  __device__ KvTiles(const AttentionParams& p, int table, int kv_head, int begin, int end)
      : p_(p),
        block_table_(p.block_tables + table),
        kv_head_(kv_head),
        next_(begin + FirstRow()),
        end_(end) {
    LookUp();
  }

  // Begins the copy of the next tile: one group of copies, an empty one past the last tile.
  __device__ void IssueNext() {
    const int lane = threadIdx.x % kWarpSize;
    const int chunk = lane % Tile::kChunks;
    const int row = lane / Tile::kChunks;  // of those at once
    const uint32_t row_bytes = static_cast<uint32_t>(p_.head_dim) * 2;
    const char* from_k = static_cast<const char*>(p_.k) + chunk * sizeof(uint4);
    const char* from_v = static_cast<const char*>(p_.v) + chunk * sizeof(uint4);
    uint4* to = Keys(issued_) + (FirstRow() + row) * Tile::kChunks;
    const int rows = min(end_ - next_, chunk * kChunkElements < p_.head_dim ? kRowsPerWarp : 0);
    if (next_ - FirstRow() < end_) {
#pragma unroll
      for (int i = 0; i < kRowsPerWarp; i += kRowsAtOnce) {
        const uint64_t cached = __shfl_sync(kWholeWarp, cached_row_, i + row);
        const bool valid = i + row < rows;
        uint4* key = to + i * Tile::kChunks + (chunk ^ Tile::Flip(row) ^ Tile::Flip(i));
        CopyAsync16(key, from_k + cached * row_bytes, valid);
        CopyAsync16(key + kTileChunks, from_v + cached * row_bytes, valid);
      }
    }
    CopyAsyncCommit();
    issued_ = issued_ + 1 == kStages ? 0 : issued_ + 1;
    next_ += static_cast<int>(kAttentionTile);
    LookUp();
  }

  // Waits for the oldest tile that was not yet taken, which then is all threads' to read until the
  // next Take. Nobody may be reading the one before it afterwards: its place is free.
  __device__ const uint4* Take() {
    CopyAsyncWait<kStages - 2>();
    __syncthreads();
    const uint4* keys = Keys(taken_);
    taken_ = taken_ + 1 == kStages ? 0 : taken_ + 1;
    return keys;
  }
  __device__ static const uint4* ValuesOf(const uint4* keys) { return keys + kTileChunks; }

 private:
  using Tile = SharedTile<kDim>;
  static constexpr int kTileChunks = Tile::kBytes / static_cast<int>(sizeof(uint4));
  static constexpr int kRowsPerWarp = static_cast<int>(kAttentionTile) / kWarps;
  static constexpr int kRowsAtOnce = kWarpSize / Tile::kChunks;
  static_assert(kRowsPerWarp <= kWarpSize && kRowsPerWarp % kRowsAtOnce == 0 && kStages >= 2);

  // Of a tile, of those that this warp copies.
  __device__ static int FirstRow() { return threadIdx.x / kWarpSize * kRowsPerWarp; }
  __device__ static uint4* Keys(int stage) {
    return DynamicShared<uint4>() + stage * 2 * kTileChunks;
  }

  // Each lane finds one of the warp's rows, a tile ahead, so that nobody waits for block tables.
  __device__ void LookUp() {
    const int position = next_ + threadIdx.x % kWarpSize % kRowsPerWarp;
    cached_row_ = position < end_ ? CacheRow(p_, block_table_, kv_head_, position) : 0;
  }

  const AttentionParams& p_;
  const int32_t* block_table_;
  int kv_head_;
  int next_;  // position of the warp's first row in the tile that is issued next
  int end_;
  uint32_t cached_row_;
  int issued_ = 0;
  int taken_ = 0;
};

}  // namespace lockstep::cuda
