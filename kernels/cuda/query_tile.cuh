// The queries of a block's rows in shared memory, rounded to what is multiplied.
#pragma once

#include "kernels/cuda/row_tiles.cuh"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {

// 16 bytes, the unit of copies and of matrix rows: 8 elements.
constexpr int kChunkElements = 8;

// StageQueries of queries that lie as Q.
template <typename Q, typename T, typename Tile, int kDim, int kRows, int kThreads, int kAtOnce>
__device__ void StageQueriesOf(const AttentionParams& p, const RowTile& tile, int first_row,
                               int kv_head, int thread, uint4* queries) {
  constexpr int kElements = kVectorElements;  // a read of 16 bytes or 8, a write of 8
  constexpr int kPerRow = kDim / kElements;
  constexpr int kReads = kRows * kPerRow / kThreads;
  constexpr int kBatch = kReads < kAtOnce ? kReads : kAtOnce;
  static_assert(kReads % kBatch == 0 && kReads * kThreads == kRows * kPerRow);
  for (int begin = thread; begin < kRows * kPerRow; begin += kBatch * kThreads) {
    Floats<kElements> x[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = first_row + (begin + i * kThreads) / kPerRow;
      const int d = (begin + i * kThreads) % kPerRow * kElements;
      x[i] = {};
      if (row >= tile.num_rows() || d >= p.head_dim) continue;
      const Q* q = QueryRow<Q>(p, tile.Token(p, row), tile.Head(p, kv_head, row));
      x[i] = Load<kElements>(q + d);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int row = (begin + i * kThreads) / kPerRow;
      const int d = (begin + i * kThreads) % kPerRow * kElements;
      uint4* chunk = queries + Tile::Index(row, d / kChunkElements);
      reinterpret_cast<uint2*>(chunk)[d / kElements % 2] = Whole<T>(x[i]);
    }
  }
}

// Rows first_row.. of the tile's sequence, by kThreads threads, this one being `thread`; complete
// after they have met. Rows and columns that do not exist are zeros. Tile says where a row's chunks
// lie; kAtOnce reads of a thread are on their way together.
template <typename T, typename Tile, int kDim, int kRows, int kThreads, int kAtOnce = 4>
__device__ void StageQueries(const AttentionParams& p, const RowTile& tile, int first_row,
                             int kv_head, int thread, uint4* queries) {
  if (p.qkv_dtype == DType::kF32) {
    StageQueriesOf<float, T, Tile, kDim, kRows, kThreads, kAtOnce>(p, tile, first_row, kv_head,
                                                                   thread, queries);
  } else {
    StageQueriesOf<BF16, T, Tile, kDim, kRows, kThreads, kAtOnce>(p, tile, first_row, kv_head,
                                                                  thread, queries);
  }
}

}  // namespace lockstep::cuda
