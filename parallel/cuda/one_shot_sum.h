// The kernel of a one-shot all-reduce: every rank puts its numbers where the others can read them
// and adds up what all have put there. One meeting instead of a ring's 2 (size - 1) steps.
//
// A block copies into its strip, tells the peers, waits until all have come as often, and reads
// their strips. Two slots suffice: who comes for the k+1st time has finished reading for the kth,
// so the slot of k may be written again in k + 2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kernel_stream.h"
#include "parallel/cuda/peer_strips.h"

namespace lockstep::cuda {

using OneShotMemory = PeerStrips<16, int64_t{64} << 10>;
using OneShotRanks = PeerRanks<OneShotMemory>;

// data[i] = the sum over ranks in the tree of parallel/tree_sum.h, i < count, 0 <= count <=
// OneShotMemory::kMaxFloats; all ranks launch it with the same count, in the same order. Nothing is
// launched for a count of 0.
cudaError_t LaunchOneShotSum(const OneShotRanks& ranks, float* data, int64_t count,
                             const KernelStream& stream);

}  // namespace lockstep::cuda
