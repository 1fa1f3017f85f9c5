#include "parallel/cuda/two_shot_sum.h"

#include "parallel/cuda/peer_strips.cuh"
#include "parallel/cuda/tree_sum.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kCopiesAtOnce = 4;
// More threads than of one shot have more under way already, and fewer registers each: with twice
// as many loads a block would take all of a multiprocessor's.
constexpr int kMostLoads = 8;

// Meetings come by twos, so that a sum's first one is odd.
template <int size>
__global__ void __launch_bounds__(kThreads)
    TwoShotSumKernel(const __grid_constant__ TwoShotRanks ranks, float* data, int64_t count,
                     int strip_floats) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const Strip strip = StripOf(data, count, strip_floats);
  uint32_t* num_meetings = &ranks.memory[ranks.rank]->num_meetings[blockIdx.x];
  const uint32_t meeting = LoadFromCache2(num_meetings) + 1;
  const auto slot_of = [&](int rank) -> float* {
    return ranks.memory[rank]->slots[meeting / 2 % 2][blockIdx.x];
  };
  LoadAndStore<kCopiesAtOnce, kThreads, kQuad>(
      strip.count, [&](int at) { return LoadQuad(strip, at); },
      [&](int at, const float4& quad) {
        *reinterpret_cast<float4*>(slot_of(ranks.rank) + at) = quad;
      });
  if (!MeetPeers(ranks, meeting)) return;
  using Quads = OfRanks<float4, size>;
  const int share = CeilDiv(strip.count, size * kQuad) * kQuad;
  const int mine = ranks.rank * share;
  LoadAndStore<LoadsAtOnce(size, kMostLoads), kThreads, kQuad>(
      min(share, strip.count - mine),
      [&](int at) {
        Quads parts;
#pragma unroll
        for (int rank = 0; rank < size; ++rank) {
          parts.of[rank] = *reinterpret_cast<const float4*>(slot_of(rank) + mine + at);
        }
        return parts;
      },
      [&](int at, const Quads& parts) {
        const float4 sum = TreeSumOf<float4>(
            size, [&](int rank) { return parts.of[rank]; }, AddQuads);
        *reinterpret_cast<float4*>(slot_of(ranks.rank) + mine + at) = sum;
        StoreQuad(strip, mine + at, sum);
      });
  if (!MeetPeers(ranks, meeting + 1)) return;
  const auto is_others = [&](int rank, int at) {
    return rank != ranks.rank && rank * share + at < strip.count;
  };
  LoadAndStore<LoadsAtOnce(size, kMostLoads), kThreads, kQuad>(
      share,
      [&](int at) {
        Quads sums;
#pragma unroll
        for (int rank = 0; rank < size; ++rank) {
          if (!is_others(rank, at)) continue;
          sums.of[rank] = *reinterpret_cast<const float4*>(slot_of(rank) + rank * share + at);
        }
        return sums;
      },
      [&](int at, const Quads& sums) {
#pragma unroll
        for (int rank = 0; rank < size; ++rank) {
          if (is_others(rank, at)) StoreQuad(strip, rank * share + at, sums.of[rank]);
        }
      });
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
