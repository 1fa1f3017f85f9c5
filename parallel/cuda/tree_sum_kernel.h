// The additions of parallel/tree_sum.h on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::cuda {

// own[i] = the sum over parts of parts[p * count + i], in the binary tree of neighbours
// ((p0+p1)+(p2+p3))+..., part own_part being what own held; 1 to 2^16 parts. Nothing is launched
// for a count of 0.
cudaError_t LaunchTreeSum(const float* parts, int num_parts, int64_t count, int own_part,
                          float* own, cudaStream_t stream);

}  // namespace lockstep::cuda
