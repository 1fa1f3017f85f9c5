#include "kernels/cuda/device.cuh"
#include "parallel/cuda/tree_sum.cuh"
#include "parallel/cuda/tree_sum_kernel.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;

template <int known_parts>
__global__ void TreeSumKernel(const float* parts, int num_parts, int64_t count, int own_part,
                              float* own) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  own[i] = TreeSumOf<float>(
      known_parts > 0 ? known_parts : num_parts,
      [&](int part) { return part == own_part ? own[i] : parts[part * count + i]; },
      [](float low, float high) { return low + high; });
}

}  // namespace

cudaError_t LaunchTreeSum(const float* parts, int num_parts, int64_t count, int own_part,
                          float* own, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(count, kThreads)));
  const auto launch = [&](auto kernel) {
    return Launch(kernel, grid, kThreads, 0, stream, parts, num_parts, count, own_part, own);
  };
  switch (num_parts) {
    case 2:
      return launch(&TreeSumKernel<2>);
    case 4:
      return launch(&TreeSumKernel<4>);
    case 8:
      return launch(&TreeSumKernel<8>);
    default:
      return launch(&TreeSumKernel<0>);
  }
}

}  // namespace lockstep::cuda
