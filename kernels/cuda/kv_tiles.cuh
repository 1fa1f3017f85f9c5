// Keys and values of the paged cache in shared memory, a tile of kAttentionTile tokens at a time,
// fetched in the background while an earlier one is worked on.
#pragma once

#include "kernels/cuda/attention_params.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {

// 16 bytes, the unit of copies and of matrix rows: 8 elements.
constexpr int kChunkElements = 8;

// A tile of rows of kDim bf16. Chunk c of row r lies where r's bits flip c's, so that the eight
// rows of a matrix lie in different banks, as do the chunks of a row.
template <int kDim>
struct SharedTile {
  static constexpr int kChunks = kDim / kChunkElements;  // to a row
  static_assert(kChunks == 4 || kChunks == 8 || kChunks == 16);
  static constexpr int kBytes = static_cast<int>(kAttentionTile) * kDim * 2;

  // What is flipped in all chunks of a row.
  __device__ static int Flip(int row) { return kChunks == 4 ? row / 2 % 4 : row % 8; }
  __device__ static int Index(int row, int chunk) { return row * kChunks + (chunk ^ Flip(row)); }
};

// What a block copies, tile after tile, into a ring of kStages pairs of tiles.
template <int kDim, int kWarps, int kStages>
class KvTiles {
 public:
  static constexpr int kSharedBytes = kStages * 2 * SharedTile<kDim>::kBytes;

  // Positions begin.. below `end` exist; the others become zeros, and no memory is read for them.
  __device__ KvTiles(const AttentionParams& p, int seq, int kv_head, int begin, int end)
      : p_(p),
        block_table_(p.block_tables + seq * p.max_blocks_per_seq),
        kv_head_(kv_head),
        next_(begin + threadIdx.x / kWarpSize * kRowsPerWarp),
        end_(end) {
    LookUp();
  }

  // Begins the copy of the next tile: one group of copies, an empty one past the last tile.
  __device__ void IssueNext() {
    using Tile = SharedTile<kDim>;
    const int lane = threadIdx.x % kWarpSize;
    const int chunk = lane % Tile::kChunks;
    const int first = threadIdx.x / kWarpSize * kRowsPerWarp;
    uint4* keys = Keys(issued_);
    const int rows = next_ - first < end_ ? kRowsPerWarp : 0;
#pragma unroll
    for (int i = 0; i < kRowsPerWarp; i += kRowsAtOnce) {
      if (i >= rows) break;
      const int row = i + lane / Tile::kChunks;
      const uint32_t cached = __shfl_sync(kWholeWarp, cached_row_, row);
      const bool valid = next_ + row < end_ && chunk * kChunkElements < p_.head_dim;
      const int64_t from = valid ? int64_t{cached} * p_.head_dim + chunk * kChunkElements : 0;
      const int to = Tile::Index(first + row, chunk);
      CopyAsync16(keys + to, static_cast<const BF16*>(p_.k) + from, valid);
      CopyAsync16(keys + kTileChunks + to, static_cast<const BF16*>(p_.v) + from, valid);
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
  static constexpr int kTileChunks = SharedTile<kDim>::kBytes / 16;
  static constexpr int kRowsPerWarp = static_cast<int>(kAttentionTile) / kWarps;
  static constexpr int kRowsAtOnce = kWarpSize / SharedTile<kDim>::kChunks;
  static_assert(kRowsPerWarp <= kWarpSize && kRowsPerWarp % kRowsAtOnce == 0 && kStages >= 2);

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
