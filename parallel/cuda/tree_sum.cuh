// The additions of parallel/tree_sum.h by one thread, whatever it adds.
#pragma once

#include <cuda_runtime.h>

namespace lockstep::cuda {

constexpr int kMaxTreeLevels = 17;

// ((p0+p1)+(p2+p3))+... of part(0), part(1), ..., up to 2^16 of them. Like counting in binary: a
// carry adds two sums over as many parts each. What is left at the end are complete subtrees,
// larger ones first, added from the right. All sums stay in registers when the number of parts is
// known to the compiler.
template <typename T, typename Part, typename Plus>
__device__ T TreeSumOf(int num_parts, Part part, Plus plus) {
  T sums[kMaxTreeLevels];
  int top = 0;
  for (int index = 0; index < num_parts; ++index) {
    T sum = part(index);
    for (int carry = index; (carry & 1) != 0; carry >>= 1) sum = plus(sums[--top], sum);
    sums[top++] = sum;
  }
  T sum = sums[--top];
  while (top > 0) sum = plus(sums[--top], sum);
  return sum;
}

}  // namespace lockstep::cuda
