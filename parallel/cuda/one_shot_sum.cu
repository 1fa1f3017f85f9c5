#include "parallel/cuda/one_shot_sum.h"

#include "parallel/cuda/peer_strips.cuh"
#include "parallel/cuda/tree_sum.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;

template <int size>
__global__ void __launch_bounds__(kThreads)
    OneShotSumKernel(const __grid_constant__ OneShotRanks ranks, float* data, int64_t count,
                     int strip_floats) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const Strip strip = StripOf(data, count, strip_floats);
  uint32_t* num_meetings = &ranks.memory[ranks.rank]->num_meetings[blockIdx.x];
  const uint32_t meeting = *num_meetings + 1;
  const auto slot_of = [&](int rank) -> float* {
    return ranks.memory[rank]->slots[meeting % 2][blockIdx.x];
  };
  const int first = static_cast<int>(threadIdx.x) * kQuad;
  for (int at = first; at < strip.count; at += kThreads * kQuad) {
    *reinterpret_cast<float4*>(slot_of(ranks.rank) + at) = LoadQuad(strip, at);
  }
  if (!MeetPeers(ranks, meeting)) return;
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
