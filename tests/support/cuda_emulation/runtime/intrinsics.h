// CUDA's device functions that concern one thread alone.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cstdint>

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}

// Those whose result the guide gives as approximate are exact here: within its bounds.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __frsqrt_rn(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline int __float2int_rn(float x) { return static_cast<int>(lrintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((uint64_t{x} * y) >> 32);
}

#define LOCKSTEP_MIN_MAX(type)                                 \
  constexpr type min(type a, type b) { return b < a ? b : a; } \
  constexpr type max(type a, type b) { return a < b ? b : a; }
LOCKSTEP_MIN_MAX(int)
LOCKSTEP_MIN_MAX(unsigned)
LOCKSTEP_MIN_MAX(long)
LOCKSTEP_MIN_MAX(unsigned long)
LOCKSTEP_MIN_MAX(long long)
LOCKSTEP_MIN_MAX(unsigned long long)
#undef LOCKSTEP_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }

// Threads take turns and lose theirs only where they wait: plain operations are atomic.
template <typename T, typename U>
T atomicAdd(T* address, U value) {
  const T old = *address;
  *address = old + static_cast<T>(value);
  return old;
}
template <typename T, typename U>
T atomicMax(T* address, U value) {
  const T old = *address;
  *address = std::max(old, static_cast<T>(value));
  return old;
}
template <typename T, typename U>
T atomicMin(T* address, U value) {
  const T old = *address;
  *address = std::min(old, static_cast<T>(value));
  return old;
}
template <typename T, typename U>
T atomicExch(T* address, U value) {
  const T old = *address;
  *address = static_cast<T>(value);
  return old;
}
template <typename T, typename U>
T atomicCAS(T* address, U expected, U value) {
  const T old = *address;
  if (old == static_cast<T>(expected)) *address = static_cast<T>(value);
  return old;
}
template <typename T, typename U>
T atomicOr(T* address, U value) {
  const T old = *address;
  *address = old | static_cast<T>(value);
  return old;
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  const unsigned old = *address;
  *address = old >= limit ? 0 : old + 1;
  return old;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
