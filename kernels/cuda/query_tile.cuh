// The queries of a block's rows in shared memory, rounded to bf16.
#pragma once

#include "kernels/cuda/row_tiles.cuh"

namespace lockstep::cuda {

// 16 bytes, the unit of copies and of matrix rows: 8 elements.
constexpr int kChunkElements = 8;

// By kThreads threads, this one being `thread`; complete after they have met. Rows and columns that
// do not exist are zeros. Tile says where a row's chunks lie.
template <typename Tile, int kDim, int kRows, int kThreads>
__device__ void StageQueries(const AttentionParams& p, const RowTile& tile, int kv_head, int thread,
                             uint4* queries) {
  constexpr int kElements = 4;  // a read of 16 bytes, a write of 8
  constexpr int kPerRow = kDim / kElements;
#pragma unroll 4
  for (int i = thread; i < kRows * kPerRow; i += kThreads) {
    const int row = i / kPerRow;
    const int d = i % kPerRow * kElements;
    const int number = tile.first_row + row;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (number < tile.num_rows && d < p.head_dim) {
      const float* q = QueryRow(p, tile.Token(p, number), tile.Head(p, kv_head, number));
      x = *reinterpret_cast<const float4*>(q + d);
    }
    uint4* chunk = queries + Tile::Index(row, d / kChunkElements);
    reinterpret_cast<uint2*>(chunk)[d / kElements % 2] =
        make_uint2(PackBf16(x.x, x.y), PackBf16(x.z, x.w));
  }
}

}  // namespace lockstep::cuda
