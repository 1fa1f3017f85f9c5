// Blocks of a KV cache on their way to the host's memory and back. A block has a piece of some KB
// for each layer's keys and for its values, so that what a copy engine takes to begin each copy
// would be most of the time: here the multiprocessors copy, all pieces of many blocks by one
// launch.
//
// The host's memory is read and written at its own addresses: what cudaHostAlloc gives, kernels
// reach by the same pointer (CUDA Runtime API, "Unified Addressing"). Its bytes pass the bus once,
// in accesses of 16 bytes to a thread and 512 to a warp, and the bus is the limit. As an answer
// takes long to come, each warp has kInFlight loads under way before it stores the first.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kInFlight = 8;
constexpr int64_t kTileWords = kInFlight * kWarpSize;  // that a warp copies at once
// To a launch: their addresses are its parameters, of 4 KB at most (CUDA C++ Programming Guide,
// "__global__ Function Parameters"), so that nothing waits for memory to stage them in.
constexpr int64_t kMostCopies = 256;

// What one launch copies: tiles of pieces, those of a block one after the other.
struct CopiedBlocks {
  std::byte* cache;  // [num_pieces, num_blocks, piece_bytes]
  int64_t num_blocks;
  int64_t piece_bytes;
  int64_t tiles_of_piece;
  int64_t tiles_of_block;
  int64_t num_tiles;
  std::byte* hosts[kMostCopies];
  int32_t blocks[kMostCopies];
};
static_assert(sizeof(CopiedBlocks) <= 4096);

// Word: what is moved at once.
template <typename Word, bool to_host>
__global__ void __launch_bounds__(kThreads)
    CopyKvBlocksKernel(const __grid_constant__ CopiedBlocks p) {
  const int64_t width = p.piece_bytes / static_cast<int64_t>(sizeof(Word));
  const int lane = threadIdx.x % kWarpSize;
  const int64_t stride = int64_t{gridDim.x} * kWarps;
  int64_t tile = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpSize;
  for (; tile < p.num_tiles; tile += stride) {
    const int64_t copy = tile / p.tiles_of_block;
    const int64_t of_block = tile - copy * p.tiles_of_block;
    const int64_t piece = of_block / p.tiles_of_piece;
    const int64_t first = (of_block - piece * p.tiles_of_piece) * kTileWords + lane;
    std::byte* const device = p.cache + (piece * p.num_blocks + p.blocks[copy]) * p.piece_bytes;
    std::byte* const host = p.hosts[copy] + piece * p.piece_bytes;
    const Word* const from = reinterpret_cast<const Word*>(to_host ? device : host) + first;
    Word* const to = reinterpret_cast<Word*>(to_host ? host : device) + first;
    Word words[kInFlight] = {};
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kWarpSize < width) words[i] = LoadOnce(from + i * kWarpSize);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kWarpSize < width) to[i * kWarpSize] = words[i];
    }
  }
}

bool IsInVectors(const KvBlockCopies& copies) {
  const auto is_aligned = [](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % sizeof(uint4) == 0;
  };
  if (copies.piece_bytes % static_cast<int64_t>(sizeof(uint4)) != 0) return false;
  bool are_aligned = is_aligned(copies.cache);
  for (const KvBlockCopy& copy : copies.copies) are_aligned = are_aligned && is_aligned(copy.host);
  return are_aligned;
}

// What runs beside these kernels may need all the shared memory of a multiprocessor, whose division
// does not change while one of their blocks is there (device.cuh, LaunchOverlapping).
template <typename Word, bool to_host>
cudaError_t LaunchCopies(const KvBlockCopies& copies, int64_t most_thread_blocks,
                         cudaStream_t stream) {
  const auto kernel = CopyKvBlocksKernel<Word, to_host>;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared);
  CopiedBlocks p = {};
  p.cache = copies.cache;
  p.num_blocks = copies.num_blocks;
  p.piece_bytes = copies.piece_bytes;
  p.tiles_of_piece =
      CeilDiv<int64_t>(copies.piece_bytes, kTileWords * static_cast<int64_t>(sizeof(Word)));
  p.tiles_of_block = p.tiles_of_piece * copies.num_pieces;
  for (auto left = copies.copies; !left.empty() && error == cudaSuccess;) {
    const auto count = std::min(left.size(), static_cast<size_t>(kMostCopies));
    for (size_t i = 0; i < count; ++i) {
      p.hosts[i] = left[i].host;
      p.blocks[i] = left[i].block;
    }
    p.num_tiles = p.tiles_of_block * static_cast<int64_t>(count);
    const int64_t thread_blocks =
        std::min(CeilDiv<int64_t>(p.num_tiles, kWarps), most_thread_blocks);
    error = Launch(kernel, static_cast<unsigned>(thread_blocks), kThreads, 0, stream, p);
    left = left.subspan(count);
  }
  return error;
}

template <bool to_host>
cudaError_t LaunchCopies(const KvBlockCopies& copies, int64_t most_thread_blocks,
                         cudaStream_t stream) {
  if (copies.copies.empty() || copies.num_pieces == 0 || copies.piece_bytes == 0) {
    return cudaSuccess;
  }
  return IsInVectors(copies) ? LaunchCopies<uint4, to_host>(copies, most_thread_blocks, stream)
                             : LaunchCopies<uint8_t, to_host>(copies, most_thread_blocks, stream);
}

}  // namespace

cudaError_t LaunchOffloadKv(const KvBlockCopies& copies, int most_thread_blocks,
                            cudaStream_t stream) {
  return LaunchCopies<true>(copies, most_thread_blocks, stream);
}

cudaError_t LaunchRestoreKv(const KvBlockCopies& copies, int most_thread_blocks,
                            cudaStream_t stream) {
  return LaunchCopies<false>(copies, most_thread_blocks, stream);
}

}  // namespace lockstep::cuda
