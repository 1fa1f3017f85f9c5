#include "parallel/cuda/one_shot_sum.h"

#include "parallel/cuda/peer_strips.cuh"
#include "parallel/cuda/tree_sum.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCopiesAtOnce = 4;  // all that a thread ever has
static_assert(kCopiesAtOnce * kThreads * kQuad == OneShotMemory::kStripFloats);
constexpr int kMostLoads = 16;  // 64 of some 90 registers: a third of a multiprocessor's

template <int size>
__global__ void __launch_bounds__(kThreads)
    OneShotSumKernel(const __grid_constant__ OneShotRanks ranks, float* data, int64_t count,
                     int strip_floats) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const Strip strip = StripOf(data, count, strip_floats);
  uint32_t* num_meetings = &ranks.memory[ranks.rank]->num_meetings[blockIdx.x];
  const uint32_t meeting = LoadFromCache2(num_meetings) + 1;
  const auto slot_of = [&](int rank) -> float* {
    return ranks.memory[rank]->slots[meeting % 2][blockIdx.x];
  };
  LoadAndStore<kCopiesAtOnce, kThreads, kQuad>(
      strip.count, [&](int at) { return LoadQuad(strip, at); },
      [&](int at, const float4& quad) {
        *reinterpret_cast<float4*>(slot_of(ranks.rank) + at) = quad;
      });
  if (!MeetPeers(ranks, meeting)) return;
  LoadAndStore<LoadsAtOnce(size, kMostLoads), kThreads, kQuad>(
      strip.count,
      [&](int at) {
        OfRanks<float4, size> parts;
#pragma unroll
        for (int rank = 0; rank < size; ++rank) {
          parts.of[rank] = *reinterpret_cast<const float4*>(slot_of(rank) + at);
        }
        return parts;
      },
      [&](int at, const OfRanks<float4, size>& parts) {
        StoreQuad(strip, at,
                  TreeSumOf<float4>(
                      size, [&](int rank) { return parts.of[rank]; }, AddQuads));
      });
  if (threadIdx.x == 0) *num_meetings = meeting;
}

struct Kernels {
  template <int size>
  auto of() const {
    return &OneShotSumKernel<size>;
  }
};

}  // namespace

cudaError_t LaunchOneShotSum(const OneShotRanks& ranks, float* data, int64_t count,
                             const KernelStream& stream) {
  return LaunchInStrips(Kernels(), kThreads, ranks, data, count, stream);
}

}  // namespace lockstep::cuda
