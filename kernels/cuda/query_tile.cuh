// The queries of a block's rows in shared memory, rounded to bf16.
#pragma once

#include "kernels/cuda/kv_tiles.cuh"
#include "kernels/cuda/row_tiles.cuh"

namespace lockstep::cuda {

// By all threads of the block; complete after a barrier. Rows and columns that do not exist are
// zeros.
template <int kDim, int kRows, int kThreads>
__device__ void StageQueries(const AttentionParams& p, const RowTile& tile, int kv_head,
                             uint4* queries) {
  constexpr int kElements = 4;  // a read of 16 bytes, a write of 8
  constexpr int kPerRow = kDim / kElements;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kPerRow; i += kThreads) {
    const int row = i / kPerRow;
    const int d = i % kPerRow * kElements;
    const int number = tile.first_row + row;
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (number < tile.num_rows && d < p.head_dim) {
      const float* q = QueryRow(p, tile.Token(p, number), tile.Head(p, kv_head, number));
      x = *reinterpret_cast<const float4*>(q + d);
    }
    uint4* chunk = queries + SharedTile<kDim>::Index(row, d / kChunkElements);
    reinterpret_cast<uint2*>(chunk)[d / kElements % 2] =
        make_uint2(PackBf16(x.x, x.y), PackBf16(x.z, x.w));
  }
}

}  // namespace lockstep::cuda
