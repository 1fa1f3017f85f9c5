// Keys and values of a paged e4m3 cache in shared memory, widened to what is multiplied, a tile of
// kAttentionTile tokens at a time, while the next one is fetched in the background.
//
// What a thread has fetched it widens itself, so that threads meet over the wide tile alone.
//
// Limits, for head_dim 128 (counted, of nvcc 13.0's code for compute capability 9.0). A decode's
// tile is 16 KiB, 800 cycles of an H200's memory and 1130 of an H100's, in which each scheduler
// issues 750 instructions, 330 of them to widen, where over bf16 it is 530 in twice the time;
// through shared memory goes what goes there over bf16. To a chunk's tile, which waits in shared
// memory, it is 1390 instructions, not 1110, and a sixth more of its cycles.
#pragma once

#include <algorithm>

#include "kernels/cuda/kv_tiles.cuh"

namespace lockstep::cuda {

// As T, BF16 or F16: KvTiles for the kernel that walks them. The next tile waits in registers, so
// that shared memory, which is what decodes have least of, holds and moves the wide one alone; that
// of chunks, whose registers are taken, in shared memory.
template <typename T, int kDim, int kWarps, bool kInRegisters>
class E4m3KvTiles {
 public:
  static constexpr int kTilesAhead = 1;
  static constexpr int kSharedBytes = (kInRegisters ? 2 : 3) * SharedTile<kDim>::kBytes;
  static constexpr int kOneTileBytes = kSharedBytes;
  static constexpr int kIdleAtFirst = 0;  // the wide tile

  // Positions begin.. below `end` exist. Beyond it a tile has the last one's keys and values, which
  // have no weight, and beyond head_dim columns that queries have zeros for and nobody writes: NaN
  // only where others have it, too. (What is to be zeros instead, nvcc 13 moves from where it was
  // loaded to where zeros are, and so waits for it at once.)
  __device__ E4m3KvTiles(const AttentionParams& p, int table, int kv_head, int begin, int end)
      : p_(p),
        block_table_(p.block_tables + table),
        kv_head_(kv_head),
        next_(begin + FirstRow()),
        end_(end) {
    LookUp();
  }

  // Begins to fetch the next tile, if there is one. The one before it was taken.
  __device__ void IssueNext() {
    const auto row_bytes = static_cast<uint32_t>(p_.head_dim);
    const int column = Chunk() * kNarrowElements < p_.head_dim ? Chunk() * kNarrowElements : 0;
    const char* from_k = static_cast<const char*>(p_.k) + column;
    const char* from_v = static_cast<const char*>(p_.v) + column;
    if (kInRegisters || next_ - FirstRow() < end_) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const uint64_t cached = __shfl_sync(kWholeWarp, cached_row_, i * kRowsAtOnce + Row());
        Fetch(0, i, from_k + cached * row_bytes);
        Fetch(1, i, from_v + cached * row_bytes);
      }
    }
    if constexpr (!kInRegisters) CopyAsyncCommit();
    next_ += static_cast<int>(kAttentionTile);
    LookUp();
  }

  // Waits for the tile that was not yet taken and widens it; then it is all threads' to read until
  // the next Take.
  __device__ const uint4* Take() {
    if constexpr (!kInRegisters) CopyAsyncWait<0>();
    __syncthreads();  // nobody reads the tile before it any more, nor queries in its place
    uint4* const first = DynamicShared<uint4>() + (FirstRow() + Row()) * Tile::kChunks;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        uint4* const row = first + side * kTileChunks + i * kRowsAtOnce * Tile::kChunks;
        const int chunk = Chunk() * 2 ^ Tile::Flip(Row()) ^ Tile::Flip(i * kRowsAtOnce);
        WidenE4m3<T>(Fetched(side, i), row[chunk], row[chunk ^ 1]);
      }
    }
    __syncthreads();
    return DynamicShared<uint4>();
  }
  __device__ static const uint4* ValuesOf(const uint4* keys) { return keys + kTileChunks; }

 private:
  using Tile = SharedTile<kDim>;
  static constexpr int kTileChunks = Tile::kBytes / static_cast<int>(sizeof(uint4));
  static constexpr int kNarrowElements = 2 * kChunkElements;  // of 16 bytes
  static constexpr int kNarrowChunks = kDim / kNarrowElements;
  static constexpr int kRowsPerWarp = static_cast<int>(kAttentionTile) / kWarps;
  static constexpr int kRowsAtOnce = kWarpSize / kNarrowChunks;
  static constexpr int kPieces = kRowsPerWarp / kRowsAtOnce;  // of keys, and of values, to a thread
  static_assert(kRowsPerWarp <= kWarpSize && kRowsPerWarp % kRowsAtOnce == 0);

  // Of a tile, of those that this warp fetches.
  __device__ static int FirstRow() { return threadIdx.x / kWarpSize * kRowsPerWarp; }
  // Which 16 bytes of which of kRowsAtOnce rows are a lane's: eight lanes, which write wide chunks
  // together, have two rows (of 32 elements four) whose Flip is not the same, and no bank twice.
  __device__ static int Chunk() {
    const int lane = threadIdx.x % kWarpSize;
    return kNarrowChunks == 8 ? lane % 4 + lane / 8 % 2 * 4 : lane % kNarrowChunks;
  }
  __device__ static int Row() {
    const int lane = threadIdx.x % kWarpSize;
    return kNarrowChunks == 8 ? lane / 4 % 2 + lane / 16 * 2 : lane / kNarrowChunks;
  }

  // Piece i of keys (side 0) or values.
  __device__ void Fetch(int side, int i, const char* from) {
    if constexpr (kInRegisters) {
      ahead_[side][i] = LoadFromCache2(reinterpret_cast<const uint4*>(from));
    } else {
      CopyAsync16(Place(side, i), from, true);
    }
  }
  __device__ uint4 Fetched(int side, int i) const {
    if constexpr (kInRegisters) {
      return ahead_[side][i];
    } else {
      return LoadSharedVector(Place(side, i));
    }
  }
  // This thread's own.
  __device__ static uint4* Place(int side, int i) {
    constexpr int kThreads = kWarps * kWarpSize;
    return DynamicShared<uint4>() + 2 * kTileChunks + (side * kPieces + i) * kThreads + threadIdx.x;
  }

  // Each lane finds one of the warp's rows, a tile ahead, so that nobody waits for block tables.
  __device__ void LookUp() {
    const int position = next_ + static_cast<int>(threadIdx.x) % kWarpSize % kRowsPerWarp;
    cached_row_ = CacheRow(p_, block_table_, kv_head_, min(position, end_ - 1));
  }

  const AttentionParams& p_;
  const int32_t* block_table_;
  int kv_head_;
  int next_;  // position of the warp's first row in the tile that is issued next
  int end_;
  uint32_t cached_row_;
  uint4 ahead_[2][kInRegisters ? kPieces : 1];
};

}  // namespace lockstep::cuda
