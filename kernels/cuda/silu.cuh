// The MLP's activation.
#pragma once

#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {

// silu(gate) * up.
template <int n>
__device__ inline Floats<n> Gated(const Floats<n>& gate, Floats<n> up) {
#pragma unroll
  for (int e = 0; e < n; ++e) up.of[e] *= gate.of[e] / (1.0f + expf(-gate.of[e]));
  return up;
}

}  // namespace lockstep::cuda
