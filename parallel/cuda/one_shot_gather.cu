#include "parallel/cuda/one_shot_gather.h"
#include "parallel/cuda/peer_strips.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCopiesAtOnce = 4;  // all that a thread ever has of 16 bytes each
constexpr int kMostLoads = 16;    // as sums

// Unit: what a thread moves at once; divides all addresses and sizes of this rank.
template <typename Unit, int size>
__global__ void __launch_bounds__(kThreads)
    OneShotGatherKernel(const __grid_constant__ OneShotRanks ranks, GatheredRows rows, int64_t,
                        int strip_floats) {
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  const int64_t strip_bytes = int64_t{strip_floats} * int64_t{sizeof(float)};
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * strip_bytes;
  const int num_units =
      static_cast<int>(min(strip_bytes, rows.bytes - begin) / int64_t{sizeof(Unit)});
  uint32_t* num_meetings = &ranks.memory[ranks.rank]->num_meetings[blockIdx.x];
  const uint32_t meeting = LoadFromCache2(num_meetings) + 1;
  const auto slot_of = [&](int rank) {
    return reinterpret_cast<Unit*>(ranks.memory[rank]->slots[meeting % 2][blockIdx.x]);
  };
  const auto* mine = reinterpret_cast<const Unit*>(rows.mine + begin);
  LoadAndStore<kCopiesAtOnce, kThreads, 1>(
      num_units, [&](int at) { return mine[at]; },
      [&](int at, const Unit& unit) { slot_of(ranks.rank)[at] = unit; });
  if (!MeetPeers(ranks, meeting)) return;
  using Units = OfRanks<Unit, size>;
  LoadAndStore<LoadsAtOnce(size, kMostLoads), kThreads, 1>(
      num_units,
      [&](int at) {
        Units units;
#pragma unroll
        for (int rank = 0; rank < size; ++rank) units.of[rank] = slot_of(rank)[at];
        return units;
      },
      [&](int at, const Units& units) {
#pragma unroll
        for (int rank = 0; rank < size; ++rank) {
          reinterpret_cast<Unit*>(rows.all + rank * rows.bytes + begin)[at] = units.of[rank];
        }
      });
  if (threadIdx.x == 0) *num_meetings = meeting;
}

template <typename Unit>
struct Kernels {
  template <int size>
  auto of() const {
    return &OneShotGatherKernel<Unit, size>;
  }
};

bool AreWhole(const GatheredRows& rows, size_t unit_bytes) {
  const auto all_bits = reinterpret_cast<uintptr_t>(rows.mine) |
                        reinterpret_cast<uintptr_t>(rows.all) | static_cast<uintptr_t>(rows.bytes);
  return all_bits % unit_bytes == 0;
}

}  // namespace

cudaError_t LaunchOneShotGather(const OneShotRanks& ranks, const GatheredRows& rows,
                                const KernelStream& stream) {
  const int64_t count = CeilDiv(rows.bytes, int64_t{sizeof(float)});
  if (AreWhole(rows, sizeof(uint4))) {
    return LaunchInStrips(Kernels<uint4>(), kThreads, ranks, rows, count, stream);
  }
  if (AreWhole(rows, sizeof(uint2))) {
    return LaunchInStrips(Kernels<uint2>(), kThreads, ranks, rows, count, stream);
  }
  return LaunchInStrips(Kernels<uint8_t>(), kThreads, ranks, rows, count, stream);
}

}  // namespace lockstep::cuda
