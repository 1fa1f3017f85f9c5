// The wgmma kernel among those that LaunchAttention chooses from.
#pragma once

#include "kernels/cuda/attention_params.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {

// The splits of one launch, in `blocks`; tiles of 128 rows. The cache is one that
// WgmmaAttentionSupports. cudaErrorInvalidValue when the driver refuses to map it.
cudaError_t LaunchAttentionWgmma(const AttentionParams& p, const KvCacheView& cache, dim3 blocks,
                                 TensorMapEncoder encode_maps, cudaStream_t stream);

}  // namespace lockstep::cuda
