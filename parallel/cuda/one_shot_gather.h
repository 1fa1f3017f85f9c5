// The kernel of a one-shot all-gather: every rank puts its bytes where the others can read them and
// reads what all have put there. By the same memory and meetings as one-shot sums
// (parallel/cuda/one_shot_sum.h), among which it takes its turn.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernel_stream.h"
#include "parallel/cuda/one_shot_sum.h"

namespace lockstep::cuda {

struct GatheredRows {
  const std::byte* mine;  // [bytes]; may lie in place, at all + rank * bytes
  std::byte* all;         // [size, bytes]
  int64_t bytes;          // of a rank, 0 to kMaxBytes
  static constexpr int64_t kMaxBytes = OneShotMemory::kMaxFloats * int64_t{sizeof(float)};
};

// all[r] = what rank r has at mine; all ranks launch it with the same bytes, in the same order.
// Nothing is launched for no bytes. Fastest where addresses and bytes are multiples of 16, then
// of 8.
cudaError_t LaunchOneShotGather(const OneShotRanks& ranks, const GatheredRows& rows,
                                const KernelStream& stream);

}  // namespace lockstep::cuda
