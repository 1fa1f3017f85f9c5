// Products of 9 to 64 rows: see skinny_gemm.h, by which they are launched.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/skinny_gemm.h"

namespace lockstep::cuda {

// Of any number of rows up to 64. cudaErrorInvalidValue, too, where the memory for shared sums is
// missing or too small.
cudaError_t LaunchSlenderGemm(int variant, const SkinnyProduct& product,
                              const KernelStream& stream);

}  // namespace lockstep::cuda
