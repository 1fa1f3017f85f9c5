// A row on its way to e4m3, in the hands of one block: its largest magnitude, the scale that
// follows from it, and its numbers by that scale. What becomes of them is written at
// LaunchQuantizeFp8 (kernels.h).
#pragma once

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {

// A magnitude's bits: as numbers they are in the same order, infinity above all, NaN above that.
template <int n>
__device__ inline unsigned LargestOf(const Floats<n>& x, unsigned largest) {
#pragma unroll
  for (int e = 0; e < n; ++e) largest = max(largest, __float_as_uint(x.of[e]) & 0x7fffffffu);
  return largest;
}

// Of all threads, on every one; the same in any order. Once in a kernel.
__device__ inline unsigned BlockMax(unsigned value) {
  __shared__ unsigned of_warp[kWarpSize];
  const auto warp_max = [](unsigned x) {
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      x = max(x, __shfl_xor_sync(kWholeWarp, x, offset));
    }
    return x;
  };
  value = warp_max(value);
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarpSize;
  return warp_max(lane < blockDim.x / kWarpSize ? of_warp[lane] : 0u);
}

class E4m3Scale {
 public:
  // largest: LargestOf the whole row; most: E4m3Rows::most_scale.
  __device__ E4m3Scale(unsigned largest, float most) {
    constexpr unsigned kInfinity = 0x7f800000u;
    constexpr unsigned kNan = 0x7fc00000u;
    const float scale = fminf(__uint_as_float(largest) / kLargestE4m3, most);  // of NaN: most
    const bool is_finite = largest <= kInfinity && scale < __uint_as_float(kInfinity);
    // Of denormal rows the scale would have no inverse: they are zeros.
    inverse_ = is_finite && scale >= 0x1p-120f ? 1.0f / scale : 0.0f;
    scale_ = is_finite ? (inverse_ > 0.0f ? scale : 0.0f) : __uint_as_float(kNan);
  }

  // That multiplies what Store has written.
  __device__ float value() const { return scale_; }

  template <int n>
  __device__ void Store(uint8_t* to, const Floats<n>& x) const {
    const Floats<n> numbers = inverse_ > 0.0f ? x : Floats<n>{};  // else perhaps not finite
    if constexpr (n == kVectorElements) {
      const uint32_t low = PackE4m3(numbers.of[0] * inverse_, numbers.of[1] * inverse_);
      const uint32_t high = PackE4m3(numbers.of[2] * inverse_, numbers.of[3] * inverse_);
      *reinterpret_cast<uint32_t*>(to) = low | high << 16;
    } else {
      *to = static_cast<uint8_t>(PackE4m3(numbers.of[0] * inverse_, 0.0f));
    }
  }

 private:
  float scale_;
  float inverse_;
};

}  // namespace lockstep::cuda
