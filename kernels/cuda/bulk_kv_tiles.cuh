// Keys and values of the paged cache in shared memory, brought by Hopper's copy engine: one warp
// issues the copies, two warpgroups work on what has come.
#pragma once

#include <hopper_instructions.cuh>

#include "kernels/cuda/attention_params.cuh"
#include "kernels/cuda/cycle_counter.cuh"
#include "kernels/cuda/swizzled_tile.cuh"

namespace lockstep::cuda {

constexpr int kBulkTile = 128;  // tokens
constexpr int kBulkStages = 2;  // tiles of keys, and of values
constexpr int kConsumerWarps = 8;

// Waits for barriers that shall not hang: one that takes longer than any kernel should is given up,
// and from then on all that are not over. The results are then worthless. Whoever tries the kernel
// is told; otherwise the kernel ends with an error. What passes while the kernel is stopped, by a
// debugger or for other processes' turns, hardly counts: it is one look's, however long.
class BoundedWait {
 public:
  __device__ explicit BoundedWait(uint32_t* failed) : failed_(failed) {}

  // By all lanes of a warp, which go on together.
  __device__ void operator()(uint64_t* barrier, uint32_t parity) {
    if (!BarrierTryWait(barrier, parity)) WaitOn(barrier, parity);
    __syncwarp();
  }

 private:
  static constexpr int64_t kMostCycles = int64_t{1} << 32;     // some two seconds
  static constexpr int64_t kCyclesOfALook = int64_t{1} << 26;  // longer than a look takes

  __device__ void WaitOn(uint64_t* barrier, uint32_t parity) {
    CycleCounter counter(kCyclesOfALook);
    while (!given_up_ && !BarrierTryWait(barrier, parity)) {
      given_up_ = SomebodyFailed() || counter.Look() > kMostCycles;
    }
    if (given_up_) Tell();
  }
  __device__ bool SomebodyFailed() const {
    return failed_ != nullptr && *static_cast<const volatile uint32_t*>(failed_) != 0;
  }
  __device__ void Tell() const {
    if (failed_ == nullptr) StopKernel();
    *failed_ = 1;
  }

  uint32_t* failed_;
  bool given_up_ = false;
};

// A ring of tiles, and who is at which: `full` when a tile has come, `empty` when all warps have
// left it.
template <int kDim>
struct BulkRing {
  using Tile = SwizzledTile<kDim, kBulkTile>;
  struct Barriers {
    uint64_t full[kBulkStages];
    uint64_t empty[kBulkStages];
  };

  char* tiles;  // kBulkStages of them
  Barriers* barriers;

  __device__ void Init() const {
    for (int stage = 0; stage < kBulkStages; ++stage) {
      BarrierInit(&barriers->full[stage], 1);
      BarrierInit(&barriers->empty[stage], kConsumerWarps);
    }
  }
  __device__ char* At(int tile) const { return tiles + tile % kBulkStages * Tile::kBytes; }

  // Of the tile with this number; false positives of waits are a whole ring away.
  __device__ void AwaitFull(int tile, BoundedWait& wait) const {
    wait(&barriers->full[tile % kBulkStages], tile / kBulkStages % 2);
  }
  __device__ void AwaitEmpty(int tile, BoundedWait& wait) const {
    wait(&barriers->empty[tile % kBulkStages], (tile / kBulkStages + 1) % 2);
  }
  // By all lanes of a warp.
  __device__ void Leave(int tile) const {
    if (threadIdx.x % kWarpSize == 0) BarrierArrive(&barriers->empty[tile % kBulkStages]);
  }
};

// What one warp issues: tiles of the positions first.. below `end`, which all lie in the sequence;
// blocks beyond are zeros, but positions of the last block beyond `end` are as the cache has them.
template <int kDim>
class BulkProducer {
 public:
  __device__ BulkProducer(const AttentionParams& p, int table, int kv_head, int first, int end)
      : p_(p),
        block_table_(p.block_tables + table),
        kv_head_(kv_head),
        first_(first),
        end_(end),
        wait_(p.failed_waits) {}

  // This lane's part of a tile: a block of the cache that Copy is to be given, -1 for none. That is
  // out of bounds.
  __device__ int LookUp(int tile) const {
    const int position = first_ + tile * kBulkTile + LaneInWarp() * p_.block_size;
    if (position >= end_) return -1;
    return LoadFromCache2(block_table_ + position / p_.by_block_size) * p_.num_kv_heads + kv_head_;
  }

  __device__ void Copy(const BulkRing<kDim>& ring, const CUtensorMap& map, int tile, int block) {
    using Tile = typename BulkRing<kDim>::Tile;
    const int lane = LaneInWarp();
    uint64_t* full = &ring.barriers->full[tile % kBulkStages];
    ring.AwaitEmpty(tile, wait_);
    if (lane == 0) BarrierArriveExpect(full, Tile::kBytes);
    __syncwarp();
    if (lane * p_.block_size >= kBulkTile) return;
    char* to = ring.At(tile) + lane * p_.block_size * Tile::kLineBytes;
#pragma unroll
    for (int slab = 0; slab < Tile::kSlabs; ++slab) {
      CopyBox(to + slab * Tile::kSlabBytes, map, full, slab * 64, 0, block);
    }
  }

 private:
  __device__ static int LaneInWarp() { return static_cast<int>(threadIdx.x) % kWarpSize; }

  const AttentionParams& p_;
  const int32_t* block_table_;
  int kv_head_;
  int first_;
  int end_;
  BoundedWait wait_;
};

}  // namespace lockstep::cuda
