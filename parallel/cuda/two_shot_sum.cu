#include "parallel/cuda/two_shot_sum.h"

#include "parallel/cuda/peer_strips.cuh"
#include "parallel/cuda/tree_sum.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 512;

// Meetings come by twos, so that a sum's first one is odd.
template <int size>
__global__ void __launch_bounds__(kThreads)
    TwoShotSumKernel(const __grid_constant__ TwoShotRanks ranks, float* data, int64_t count,
                     int strip_floats) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const Strip strip = StripOf(data, count, strip_floats);
  uint32_t* num_meetings = &ranks.memory[ranks.rank]->num_meetings[blockIdx.x];
  const uint32_t meeting = *num_meetings + 1;
  const auto slot_of = [&](int rank) -> float* {
    return ranks.memory[rank]->slots[meeting / 2 % 2][blockIdx.x];
  };
  const int first = static_cast<int>(threadIdx.x) * kQuad;
  for (int at = first; at < strip.count; at += kThreads * kQuad) {
    *reinterpret_cast<float4*>(slot_of(ranks.rank) + at) = LoadQuad(strip, at);
  }
  if (!MeetPeers(ranks, meeting)) return;
  const int share = CeilDiv(strip.count, size * kQuad) * kQuad;
  const int mine = ranks.rank * share;
  for (int at = mine + first; at < min(mine + share, strip.count); at += kThreads * kQuad) {
    float4 parts[size];
#pragma unroll
    for (int rank = 0; rank < size; ++rank) {
      parts[rank] = *reinterpret_cast<const float4*>(slot_of(rank) + at);
    }
    const float4 sum = TreeSumOf<float4>(
        size, [&](int rank) { return parts[rank]; }, AddQuads);
    *reinterpret_cast<float4*>(slot_of(ranks.rank) + at) = sum;
    StoreQuad(strip, at, sum);
  }
  if (!MeetPeers(ranks, meeting + 1)) return;
  // One quad of each other share at a time: loads from all peers are under way at once.
  for (int at = first; at < share; at += kThreads * kQuad) {
    float4 sums[size];
#pragma unroll
    for (int rank = 0; rank < size; ++rank) {
      if (rank != ranks.rank && rank * share + at < strip.count) {
        sums[rank] = *reinterpret_cast<const float4*>(slot_of(rank) + rank * share + at);
      }
    }
#pragma unroll
    for (int rank = 0; rank < size; ++rank) {
      if (rank != ranks.rank && rank * share + at < strip.count) {
        StoreQuad(strip, rank * share + at, sums[rank]);
      }
    }
  }
  if (threadIdx.x == 0) *num_meetings = meeting + 1;
}

struct Kernels {
  template <int size>
  auto of() const {
    return &TwoShotSumKernel<size>;
  }
};

}  // namespace

cudaError_t LaunchTwoShotSum(const TwoShotRanks& ranks, float* data, int64_t count,
                             const KernelStream& stream) {
  return LaunchInStrips(Kernels(), kThreads, ranks, data, count, stream);
}

}  // namespace lockstep::cuda
