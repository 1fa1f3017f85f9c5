#include "kernels/cuda/device.cuh"
#include "parallel/cuda/tree_sum_kernel.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxLevels = 17;

// Like counting in binary: a carry adds two sums over as many parts each. What is left at the end
// are complete subtrees, larger ones first, added from the right.
__device__ float TreeSumOf(const float* first, int num_parts, int64_t stride) {
  float sums[kMaxLevels];
  int top = 0;
  for (int part = 0; part < num_parts; ++part) {
    float sum = first[part * stride];
    for (int carry = part; (carry & 1) != 0; carry >>= 1) sum = sums[--top] + sum;
    sums[top++] = sum;
  }
  float sum = sums[--top];
  while (top > 0) sum = sums[--top] + sum;
  return sum;
}

// All of `sums` stays in registers when the number of parts is known.
template <int known_parts>
__global__ void TreeSumKernel(const float* parts, int num_parts, int64_t count, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  out[i] = TreeSumOf(parts + i, known_parts > 0 ? known_parts : num_parts, count);
}

}  // namespace

cudaError_t LaunchTreeSum(const float* parts, int num_parts, int64_t count, float* out,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(CeilDiv<int64_t>(count, kThreads)));
  const auto launch = [&](auto kernel) {
    return Launch(kernel, grid, kThreads, 0, stream, parts, num_parts, count, out);
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
