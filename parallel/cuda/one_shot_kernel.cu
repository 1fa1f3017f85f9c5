#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "parallel/cuda/one_shot_kernel.h"
#include "parallel/cuda/tree_sum.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;                            // floats that move at once
constexpr int64_t kLeastFloats = kThreads * kQuad;  // that are worth another block
constexpr uint32_t kLooksPerAbortCheck = 64;        // the host's memory is far away

// A block's part of the data.
struct Strip {
  float* data;
  int count;
  bool aligned;  // to whole quads
};

__device__ float4 LoadQuad(const Strip& strip, int at) {
  const float* from = strip.data + at;
  if (strip.aligned && at + kQuad <= strip.count) return *reinterpret_cast<const float4*>(from);
  float4 quad = make_float4(from[0], 0.0f, 0.0f, 0.0f);
  if (at + 1 < strip.count) quad.y = from[1];
  if (at + 2 < strip.count) quad.z = from[2];
  if (at + 3 < strip.count) quad.w = from[3];
  return quad;
}

__device__ void StoreQuad(const Strip& strip, int at, const float4& quad) {
  float* to = strip.data + at;
  if (strip.aligned && at + kQuad <= strip.count) {
    *reinterpret_cast<float4*>(to) = quad;
    return;
  }
  to[0] = quad.x;
  if (at + 1 < strip.count) to[1] = quad.y;
  if (at + 2 < strip.count) to[2] = quad.z;
  if (at + 3 < strip.count) to[3] = quad.w;
}

__device__ float4 AddQuads(const float4& low, const float4& high) {
  return make_float4(low.x + high.x, low.y + high.y, low.z + high.z, low.w + high.w);
}

// Thread r tells rank r that this block has come for the `meeting`th time, and waits for its.
// False: the wait was aborted.
__device__ bool Meet(const OneShotRanks& ranks, uint32_t meeting) {
  if (threadIdx.x >= static_cast<unsigned>(ranks.size)) return true;
  const unsigned peer = threadIdx.x;
  StoreReleaseSystem(&ranks.memory[peer]->arrived[blockIdx.x][ranks.rank], meeting);
  const uint32_t* arrived = &ranks.memory[ranks.rank]->arrived[blockIdx.x][peer];
  // A peer may be one meeting ahead.
  for (uint32_t looks = 1; static_cast<int32_t>(LoadAcquireSystem(arrived) - meeting) < 0;
       ++looks) {
    if (looks % kLooksPerAbortCheck == 0 && LoadAcquireSystem(ranks.aborted) != 0) return false;
    SpinPause();
  }
  return true;
}

template <int size>
__global__ void __launch_bounds__(kThreads)
    OneShotSumKernel(const __grid_constant__ OneShotRanks ranks, float* data, int64_t count,
                     int strip_floats) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * strip_floats;
  const Strip strip = {data + begin, static_cast<int>(min(int64_t{strip_floats}, count - begin)),
                       reinterpret_cast<uintptr_t>(data) % sizeof(float4) == 0};
  uint32_t* num_meetings = &ranks.memory[ranks.rank]->num_meetings[blockIdx.x];
  const uint32_t meeting = *num_meetings + 1;
  const auto slot_of = [&](int rank) -> float* {
    return ranks.memory[rank]->slots[meeting % 2][blockIdx.x];
  };
  const int first = static_cast<int>(threadIdx.x) * kQuad;
  for (int at = first; at < strip.count; at += kThreads * kQuad) {
    *reinterpret_cast<float4*>(slot_of(ranks.rank) + at) = LoadQuad(strip, at);
  }
  __syncthreads();  // all is in the slot, and all have read the count
  if (__syncthreads_or(!Meet(ranks, meeting)) != 0) return;
  for (int at = first; at < strip.count; at += kThreads * kQuad) {
    float4 parts[size];
#pragma unroll
    for (int rank = 0; rank < size; ++rank) {
      parts[rank] = *reinterpret_cast<const float4*>(slot_of(rank) + at);
    }
    StoreQuad(strip, at,
              TreeSumOf<float4>(
                  size, [&](int rank) { return parts[rank]; }, AddQuads));
  }
  if (threadIdx.x == 0) *num_meetings = meeting;
}

}  // namespace

cudaError_t LaunchOneShotSum(const OneShotRanks& ranks, float* data, int64_t count,
                             const KernelStream& stream) {
  if (count == 0) return cudaSuccess;
  if (count < 0 || count > OneShotMemory::kMaxFloats) return cudaErrorInvalidValue;
  const int64_t blocks = std::min<int64_t>(CeilDiv(count, kLeastFloats), OneShotMemory::kMaxBlocks);
  const int64_t strip_floats = CeilDiv(CeilDiv(count, blocks), int64_t{kQuad}) * kQuad;
  const auto launch = [&](auto kernel) {
    // No block without numbers.
    const dim3 grid(static_cast<unsigned>(CeilDiv(count, strip_floats)));
    return LaunchOverlapping(kernel, grid, kThreads, 0, stream, ranks, data, count,
                             static_cast<int>(strip_floats));
  };
  switch (ranks.size) {
    case 2:
      return launch(&OneShotSumKernel<2>);
    case 3:
      return launch(&OneShotSumKernel<3>);
    case 4:
      return launch(&OneShotSumKernel<4>);
    case 5:
      return launch(&OneShotSumKernel<5>);
    case 6:
      return launch(&OneShotSumKernel<6>);
    case 7:
      return launch(&OneShotSumKernel<7>);
    case 8:
      return launch(&OneShotSumKernel<8>);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace lockstep::cuda
