// Attention of prefill chunks on Hopper: over bf16 and f16 caches, with wgmma, keys and values
// brought by the copy engine.
//
// Rows are those of attention_mma.cuh, 128 to a block, and so are their splits. One warp brings
// tiles of 128 tokens; two warpgroups have 64 rows each. The structure is FlashAttention-3's (Shah
// et al. 2024, sections 3.1 and 3.2): while a warpgroup's values of one tile are summed it turns
// the scores of the next into weights, and the two warpgroups take turns at issuing products, so
// that one's softmax runs beside the other's products.
//
// Limits, for head_dim 128 (counted, not measured). A tile is 8.4 million operations, 2050 cycles
// of the matrix units at best; 16,384 exponentials take 1024 cycles beside them, and its 64 KiB are
// 32 bytes a cycle from the second-level cache, about what that gives: blocks that share a KV head
// run side by side.
#pragma once

#include "kernels/cuda/bulk_kv_tiles.cuh"
#include "kernels/cuda/query_tile.cuh"
#include "kernels/cuda/warpgroup_rows.cuh"

namespace lockstep::cuda {

constexpr int kConsumerGroups = 2;
constexpr int kWgmmaRows = kConsumerGroups * kWarpgroupRows;              // to a block
constexpr int kWgmmaThreads = (1 + kConsumerGroups) * kWarpgroupThreads;  // the first brings tiles
// Of a thread: at the kernel's begin 65,536 for 384 threads, in eights. Who takes more waits for
// ever unless others give as much.
constexpr int kEntryRegisters = 168;
constexpr int kProducerRegisters = 24;
constexpr int kConsumerRegisters = 240;
static_assert(kWgmmaRows == 128);
static_assert(kProducerRegisters + kConsumerGroups * kConsumerRegisters ==
              (1 + kConsumerGroups) * kEntryRegisters);

// Named barriers, from which groups count.
constexpr int kQueriesBarrier = 1;
constexpr int kTurnBarrier = 3;
constexpr int kZerosBarrier = 5;
constexpr int kRescaleBarrier = 6;

// A block's shared memory; cache and queries are of T.
template <typename T, int kDim>
struct WgmmaShared {
  using Ring = BulkRing<kDim>;
  using Queries = typename WarpgroupRows<T, kDim, kBulkTile>::Queries;
  static constexpr int kTileBytes = kBulkStages * Ring::Tile::kBytes;
  static constexpr int kAlignment = 1024;  // of tiles; shared memory itself begins at 16
  static constexpr int kBytes = kAlignment + 2 * kTileBytes + kConsumerGroups * Queries::kBytes +
                                2 * static_cast<int>(sizeof(typename Ring::Barriers));

  Ring keys;
  Ring values;
  char* queries;  // of the first group

  __device__ WgmmaShared() {
    char* memory = DynamicShared<char>();
    memory += (kAlignment - SharedAddress(memory) % kAlignment) % kAlignment;
    queries = memory + 2 * kTileBytes;
    auto* barriers =
        reinterpret_cast<typename Ring::Barriers*>(queries + kConsumerGroups * Queries::kBytes);
    keys = {memory, barriers};
    values = {memory + kTileBytes, barriers + 1};
  }
};

// What one of the two warpgroups does with the tiles of positions first.. below `end`.
template <typename T, int kDim>
class WgmmaConsumer {
 public:
  // `group`: 0 or 1, the same to the compiler's knowledge on all lanes.
  __device__ WgmmaConsumer(const AttentionParams& p, const RowTile& tile,
                           const WgmmaShared<T, kDim>& shared, int group)
      : p_(p),
        tile_(tile),
        first_(tile.first()),
        end_(tile.end()),
        shared_(shared),
        group_(group),
        row_(tile.first_row() + group_ * kWarpgroupRows),
        seen_by_all_(min(tile.Position(p, row_) + 1, end_)),
        wait_(p.failed_waits),
        rows_(p, tile, row_, end_) {}

  __device__ void Run() {
    const int num_tiles = CeilDiv(end_ - first_, kBulkTile);
    StageOwnQueries();
    shared_.keys.AwaitFull(0, wait_);
    rows_.IssueScores(queries_, SharedAddress(shared_.keys.At(0)));
    rows_.template AwaitScores<0>();
    shared_.keys.Leave(0);
    Soften(0);
    rows_.TakeWeights();
    if (group_ == 1 && num_tiles > 1) NamedBarrierArrive<kBothGroups>(kTurnBarrier);
    for (int tile = 1; tile < num_tiles; ++tile) Walk(tile, tile + 1 == num_tiles);
    shared_.values.AwaitFull(num_tiles - 1, wait_);
    ClearBeyondEnd(num_tiles - 1);
    rows_.IssueValues(SharedAddress(shared_.values.At(num_tiles - 1)));
    rows_.AwaitValues();
    Write();
  }

 private:
  static constexpr int kBothGroups = kConsumerGroups * kWarpgroupThreads;
  using Shared = WgmmaShared<T, kDim>;
  static constexpr int kQueriesAtOnce = 16;  // nothing else goes on meanwhile

  __device__ void StageOwnQueries() {
    char* queries = shared_.queries + group_ * Shared::Queries::kBytes;
    StageQueries<T, typename Shared::Queries, kDim, kWarpgroupRows, kWarpgroupThreads,
                 kQueriesAtOnce>(p_, tile_, row_, static_cast<int>(blockIdx.y),
                                 static_cast<int>(threadIdx.x) % kWarpgroupThreads,
                                 reinterpret_cast<uint4*>(queries));
    FenceAsyncProxy();
    NamedBarrierSync<kWarpgroupThreads>(kQueriesBarrier + group_);
    queries_ = SharedAddress(queries);
  }

  // Scores of this tile, values of the one before.
  __device__ void Walk(int tile, bool last) {
    shared_.keys.AwaitFull(tile, wait_);
    NamedBarrierSync<kBothGroups>(kTurnBarrier + group_);
    rows_.IssueScores(queries_, SharedAddress(shared_.keys.At(tile)));
    shared_.values.AwaitFull(tile - 1, wait_);
    rows_.IssueValues(SharedAddress(shared_.values.At(tile - 1)));
    // The second's last turn has nobody to follow it.
    if (group_ == 0 || !last) NamedBarrierArrive<kBothGroups>(kTurnBarrier + 1 - group_);
    rows_.template AwaitScores<1>();
    shared_.keys.Leave(tile);
    Soften(tile);
    rows_.AwaitAndRescaleValues(kRescaleBarrier + group_);
    shared_.values.Leave(tile - 1);
    rows_.TakeWeights();
  }

  __device__ void Soften(int tile) {
    const int begin = first_ + tile * kBulkTile;
    rows_.Soften(begin, begin + kBulkTile > seen_by_all_);
  }

  // Positions beyond the end have weight zero, but their block may hold anything, and zero times
  // infinity is no number: values that this sequence has not written become zeros.
  __device__ void ClearBeyondEnd(int tile) {
    constexpr int kLineChunks = 8;
    const int beyond = CeilDiv(end_, p_.block_size) * p_.block_size - end_;
    if (beyond == 0) return;
    const int row = end_ - first_ - tile * kBulkTile;
    auto* chunks = reinterpret_cast<uint4*>(shared_.values.At(tile)) + row * kLineChunks;
    const int thread = static_cast<int>(threadIdx.x) - kWarpgroupThreads;
    for (int slab = 0; slab < Shared::Ring::Tile::kSlabs; ++slab) {
      uint4* lines = chunks + slab * kBulkTile * kLineChunks;
      for (int i = thread; i < beyond * kLineChunks; i += kBothGroups) {
        lines[i] = make_uint4(0, 0, 0, 0);
      }
    }
    FenceAsyncProxy();
    NamedBarrierSync<kBothGroups>(kZerosBarrier);
  }

  __device__ void Write() const {
    const int kv_head = static_cast<int>(blockIdx.y);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = rows_.Sum(half);
      const int number = row_ + rows_.RowOf(half);
      const int position = tile_.Position(p_, number);
      if (position < first_) continue;  // none of its context, or no row
      rows_.Write(half, sum, tile_.ResultOf(p_, kv_head, number, position));
    }
  }

  const AttentionParams& p_;
  const RowTile& tile_;
  int first_;
  int end_;
  const Shared& shared_;
  int group_;
  int row_;
  int seen_by_all_;  // tokens
  BoundedWait wait_;
  uint32_t queries_ = 0;  // address
  WarpgroupRows<T, kDim, kBulkTile> rows_;
};

// `keys` and `values` map the cache's two sides as [head_dim, block_size, blocks of all heads], in
// boxes of 64 columns of one block.
template <typename T, int kDim>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    AttentionWgmmaKernel(const __grid_constant__ AttentionParams p,
                         const __grid_constant__ CUtensorMap keys,
                         const __grid_constant__ CUtensorMap values) {
#if LOCKSTEP_IS_HOPPER
  RowTile tile;
  if (!FindRowTile(p, tile)) return;
  const WgmmaShared<T, kDim> shared;
  if (threadIdx.x == 0) {
    shared.keys.Init();
    shared.values.Init();
    FenceBarrierInit();
  }
  __syncthreads();
  const int group = __shfl_sync(kWholeWarp, threadIdx.x / kWarpgroupThreads, 0);
  if (group == 0) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x < kWarpSize) {
      BulkProducer<kDim> producer(p, tile.item.table, static_cast<int>(blockIdx.y), tile.first(),
                                  tile.end());
      const int num_tiles = CeilDiv(tile.end() - tile.first(), kBulkTile);
      int before = -1;
      for (int i = 0, block = producer.LookUp(0); i <= num_tiles; ++i) {
        if (i < num_tiles) producer.Copy(shared.keys, keys, i, block);
        if (i > 0) producer.Copy(shared.values, values, i - 1, before);
        before = block;
        block = producer.LookUp(i + 1);  // on its way while the next copy waits for room
      }
    }
  } else {
    TakeRegisters<kConsumerRegisters>();
    WgmmaConsumer<T, kDim>(p, tile, shared, group - 1).Run();
  }
#endif
}

}  // namespace lockstep::cuda
