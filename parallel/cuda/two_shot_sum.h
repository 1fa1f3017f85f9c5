// The kernel of a two-shot all-reduce, for more numbers than everybody should read of everybody: a
// rank adds up its share of them, then all read the shares. Two meetings; 2 (size - 1) / size times
// the data over a rank's links, as a ring, instead of size - 1 times.
//
// A block copies its strip into its slot and meets the peers' blocks; adds up the rank's share of
// the strip out of all slots, and puts it into its own slot, where nobody else reads that share as
// it was; meets them again, and reads the other shares. Two slots suffice, as for one shot.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/kernel_stream.h"
#include "parallel/cuda/peer_strips.h"

namespace lockstep::cuda {

using TwoShotMemory = PeerStrips<32, int64_t{2} << 20>;
using TwoShotRanks = PeerRanks<TwoShotMemory>;

// As LaunchOneShotSum, of up to TwoShotMemory::kMaxFloats.
cudaError_t LaunchTwoShotSum(const TwoShotRanks& ranks, float* data, int64_t count,
                             const KernelStream& stream);

}  // namespace lockstep::cuda
