// Matrices of 16-bit elements in shared memory as Hopper's copy engine writes and its wgmma reads
// them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {

// kRows rows of kDim elements in slabs of 64 columns; a slab's row is a line of 128 bytes, in which
// 16-byte chunk c of row r lies where r % 8 flips c. Begins at a multiple of 1024 bytes, where that
// pattern repeats.
// Source of descriptors: PTX ISA, "Matrix descriptor" and "Strides"; CUTLASS' canonical layouts
// (mma_traits_sm90_gmma.hpp, make_gmma_desc: Major-K and Major-MN, B128).
template <int kDim, int kRows>
struct SwizzledTile {
  static_assert(kDim % 64 == 0 && kRows % 8 == 0);
  static constexpr int kLineBytes = 128;
  static constexpr int kSlabs = kDim / 64;
  static constexpr int kSlabBytes = kRows * kLineBytes;
  static constexpr int kBytes = kSlabs * kSlabBytes;

  // Of a chunk, in chunks.
  __device__ static int Index(int row, int chunk) {
    return (chunk / 8 * kRows + row) * 8 + (chunk % 8 ^ row % 8);
  }

  // Rows times 16 columns of step `step`, the columns running: queries and keys.
  __device__ static uint64_t Columns(uint32_t tile, int step) {
    return Descriptor(tile + step / 4 * kSlabBytes + step % 4 * 32, 16);  // one slab: no stride
  }
  // 16 rows of step `step` times all columns, the columns running and the rows summed over: values.
  __device__ static uint64_t Rows(uint32_t tile, int step) {
    return Descriptor(tile + step * 16 * kLineBytes, kSlabBytes);
  }

 private:
  // `slab_bytes` from slab to slab; 1024 bytes from 8 rows to the next.
  __device__ static uint64_t Descriptor(uint32_t address, uint32_t slab_bytes) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kEightRows = uint64_t{8 * kLineBytes / 16} << 32;
    return kSwizzle128 | kEightRows | uint64_t{slab_bytes / 16} << 16 | (address & 0x3ffff) / 16;
  }
};

}  // namespace lockstep::cuda
