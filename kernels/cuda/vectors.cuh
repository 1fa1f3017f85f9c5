// Elements read and written several at a time, widened to f32 in between; and the choice of how
// many and of which type, made at the launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/device.cuh"

namespace lockstep::cuda {

// f32 elements to an access of 16 bytes, the widest there is.
constexpr int kVectorElements = 4;

template <int n>
struct Floats {
  float of[n];
};

// `from` and `to` are aligned to n elements.
template <int n>
__device__ inline Floats<n> Load(const float* from) {
  if constexpr (n == kVectorElements) {
    const float4 read = *reinterpret_cast<const float4*>(from);
    return {{read.x, read.y, read.z, read.w}};
  } else {
    static_assert(n == 1);
    return {{*from}};
  }
}
// Of BF16 or F16.
template <int n, typename T>
__device__ inline Floats<n> Load(const T* from) {
  if constexpr (n == kVectorElements) {
    const uint2 read = *reinterpret_cast<const uint2*>(from);
    const auto low = [](uint32_t packed) { return Widen(T{static_cast<uint16_t>(packed)}); };
    return {{low(read.x), low(read.x >> 16), low(read.y), low(read.y >> 16)}};
  } else {
    static_assert(n == 1);
    return {{Widen(*from)}};
  }
}

__device__ inline float4 Whole(const Floats<kVectorElements>& x) {
  return make_float4(x.of[0], x.of[1], x.of[2], x.of[3]);
}
// As BF16 or F16.
template <typename T>
__device__ inline uint2 Whole(const Floats<kVectorElements>& x) {
  return make_uint2(Pack<T>(x.of[0], x.of[1]), Pack<T>(x.of[2], x.of[3]));
}

// To global memory.
template <int n>
__device__ inline void Store(float* to, const Floats<n>& x) {
  if constexpr (n == kVectorElements) {
    StoreVector(to, Whole(x));
  } else {
    *to = x.of[0];
  }
}
template <int n, typename T>
__device__ inline void Store(T* to, const Floats<n>& x) {
  if constexpr (n == kVectorElements) {
    StoreVector(to, Whole<T>(x));
  } else {
    *to = Narrow<T>(x.of[0]);
  }
}
// Rounded, beyond 448 to 448; NaN stays that.
template <int n>
__device__ inline void Store(E4M3* to, const Floats<n>& x) {
  if constexpr (n == kVectorElements) {
    const uint32_t low = PackE4m3(x.of[0], x.of[1]);
    const uint32_t high = PackE4m3(x.of[2], x.of[3]);
    *reinterpret_cast<uint32_t*>(to) = low | high << 16;
  } else {
    *to = E4M3{static_cast<uint8_t>(PackE4m3(x.of[0], 0.0f))};
  }
}
// To shared memory, or to a variable.
template <int n>
__device__ inline void StoreNear(float* to, const Floats<n>& x) {
  if constexpr (n == kVectorElements) {
    *reinterpret_cast<float4*>(to) = Whole(x);
  } else {
    *to = x.of[0];
  }
}
template <int n, typename T>
__device__ inline void StoreNear(T* to, const Floats<n>& x) {
  if constexpr (n == kVectorElements) {
    *reinterpret_cast<uint2*>(to) = Whole<T>(x);
  } else {
    *to = Narrow<T>(x.of[0]);
  }
}

// Threads to a row of so many vectors that a block keeps in registers. A choice of the row's length
// alone: the order of its sums follows it, and no row may depend on the others. Two vectors to a
// thread let several blocks share a multiprocessor, so that one reads while another sums.
inline unsigned RowThreads(int64_t vectors) {
  const int64_t warps = CeilDiv<int64_t>(vectors, 2 * kWarpSize);
  return static_cast<unsigned>(std::min<int64_t>(warps * kWarpSize, 1024));
}

// May rows of `width` elements at these addresses be accessed as vectors?
inline bool Vectorises(int64_t width, std::initializer_list<const void*> addresses) {
  bool aligned = width % kVectorElements == 0;
  for (const void* address : addresses) {
    aligned = aligned && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  }
  return aligned;
}

// body(n) with n, known to the compiler, the elements to an access.
template <typename Body>
cudaError_t WithVectors(bool vectorises, const Body& body) {
  if (vectorises) return body(std::integral_constant<int, kVectorElements>());
  return body(std::integral_constant<int, 1>());
}

// body(T()) with T float, F16 or BF16.
template <typename Body>
cudaError_t WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float());
    case DType::kF16:
      return body(F16());
    case DType::kE4M3:
      return cudaErrorInvalidValue;  // WithCacheType
    case DType::kBF16:
      break;
  }
  return body(BF16());
}

// The same of what a KV cache holds: E4M3, too.
template <typename Body>
cudaError_t WithCacheType(DType dtype, const Body& body) {
  return dtype == DType::kE4M3 ? body(E4M3()) : WithType(dtype, body);
}

// The same of what products leave: kF32 or kBF16.
template <typename Body>
cudaError_t WithProductType(DType dtype, const Body& body) {
  if (dtype == DType::kF16 || dtype == DType::kE4M3) return cudaErrorInvalidValue;
  return dtype == DType::kF32 ? body(float()) : body(BF16());
}

}  // namespace lockstep::cuda
