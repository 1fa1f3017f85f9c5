// A block's strip of the data, and how it meets the blocks of its peers.
#pragma once

#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "parallel/cuda/peer_strips.h"

namespace lockstep::cuda {

constexpr int kQuad = 4;                      // floats that move at once
constexpr uint32_t kLooksPerAbortCheck = 64;  // the host's memory is far away

// A block's part of the data.
struct Strip {
  float* data;
  int count;
  bool is_whole;  // aligned quads
};

// Of this block, where each has strip_floats, a whole number of quads.
__device__ inline Strip StripOf(float* data, int64_t count, int strip_floats) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * strip_floats;
  const int own = static_cast<int>(min(int64_t{strip_floats}, count - begin));
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % sizeof(float4) == 0;
  return {data + begin, own, is_aligned && own % kQuad == 0};
}

__device__ inline float4 LoadQuad(const Strip& strip, int at) {
  const float* from = strip.data + at;
  if (strip.is_whole) return *reinterpret_cast<const float4*>(from);
  float4 quad = make_float4(from[0], 0.0f, 0.0f, 0.0f);
  if (at + 1 < strip.count) quad.y = from[1];
  if (at + 2 < strip.count) quad.z = from[2];
  if (at + 3 < strip.count) quad.w = from[3];
  return quad;
}

__device__ inline void StoreQuad(const Strip& strip, int at, const float4& quad) {
  float* to = strip.data + at;
  if (strip.is_whole) {
    *reinterpret_cast<float4*>(to) = quad;
    return;
  }
  to[0] = quad.x;
  if (at + 1 < strip.count) to[1] = quad.y;
  if (at + 2 < strip.count) to[2] = quad.z;
  if (at + 3 < strip.count) to[3] = quad.w;
}

__device__ inline float4 AddQuads(const float4& low, const float4& high) {
  return make_float4(low.x + high.x, low.y + high.y, low.z + high.z, low.w + high.w);
}

// How often a thread loads from all ranks before it stores, with registers for `most` loads.
constexpr int LoadsAtOnce(int num_ranks, int most) { return std::clamp(most / num_ranks, 1, 4); }

// store(at, load(at)) for every kEach-th `at` below `end`, shared out among kThreads threads. A
// thread loads at_once times before it stores: as far as the compiler knows a store may change what
// is loaded after it, and a load from a peer takes a microsecond.
template <int at_once, int kThreads, int kEach, typename Load, typename Store>
__device__ void LoadAndStore(int end, const Load& load, const Store& store) {
  constexpr int kStride = kThreads * kEach;
  for (int at = static_cast<int>(threadIdx.x) * kEach; at < end; at += at_once * kStride) {
    decltype(load(at)) loaded[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (at + i * kStride < end) loaded[i] = load(at + i * kStride);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (at + i * kStride < end) store(at + i * kStride, loaded[i]);
    }
  }
}

// What a thread has loaded from the same place of each rank's slot.
template <typename T, int size>
struct OfRanks {
  T of[size];
};

// Called by all threads of a block, when all is written that the peers are to read: thread r tells
// rank r that this block has come for the `meeting`th time, and waits for its. False, for all: the
// wait was aborted.
template <typename Memory>
__device__ bool MeetPeers(const PeerRanks<Memory>& ranks, uint32_t meeting) {
  __syncthreads();
  bool is_aborted = false;
  if (threadIdx.x < static_cast<unsigned>(ranks.size)) {
    const unsigned peer = threadIdx.x;
    StoreReleaseSystem(&ranks.memory[peer]->arrived[blockIdx.x][ranks.rank], meeting);
    const uint32_t* arrived = &ranks.memory[ranks.rank]->arrived[blockIdx.x][peer];
    // A peer may be one meeting ahead.
    for (uint32_t looks = 1; static_cast<int32_t>(LoadAcquireSystem(arrived) - meeting) < 0;
         ++looks) {
      is_aborted = looks % kLooksPerAbortCheck == 0 && LoadAcquireSystem(ranks.aborted) != 0;
      if (is_aborted) break;
      SpinPause();
    }
  }
  return __syncthreads_or(is_aborted) == 0;
}

// Launches kernels.template of<size>(), which takes (ranks, data, count, strip_floats), with as
// many blocks of num_threads as are worth it, none of them without numbers.
template <typename Memory, typename Kernels, typename Data>
cudaError_t LaunchInStrips(const Kernels& kernels, int num_threads, const PeerRanks<Memory>& ranks,
                           const Data& data, int64_t count, const KernelStream& stream) {
  if (count == 0) return cudaSuccess;
  if (count < 0 || count > Memory::kMaxFloats) return cudaErrorInvalidValue;
  const int64_t least_floats = int64_t{num_threads} * kQuad;  // that are worth another block
  const int64_t blocks = std::min<int64_t>(CeilDiv(count, least_floats), Memory::kMaxBlocks);
  const int64_t strip_floats = CeilDiv(CeilDiv(count, blocks), int64_t{kQuad}) * kQuad;
  const dim3 grid(static_cast<unsigned>(CeilDiv(count, strip_floats)));
  const auto of_size = [&](auto kernel) {
    return LaunchOverlapping(kernel, grid, num_threads, 0, stream, ranks, data, count,
                             static_cast<int>(strip_floats));
  };
  switch (ranks.size) {
    case 2:
      return of_size(kernels.template of<2>());
    case 3:
      return of_size(kernels.template of<3>());
    case 4:
      return of_size(kernels.template of<4>());
    case 5:
      return of_size(kernels.template of<5>());
    case 6:
      return of_size(kernels.template of<6>());
    case 7:
      return of_size(kernels.template of<7>());
    case 8:
      return of_size(kernels.template of<8>());
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace lockstep::cuda
