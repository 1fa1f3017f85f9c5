// CUDA's device functions that concern one thread alone.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }

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
T atomicMin(T* address, U value) {
  const T old = *address;
  *address = std::min(old, static_cast<T>(value));
  return old;
}
inline unsigned atomicInc(unsigned* address, unsigned limit) {
  const unsigned old = *address;
  *address = old >= limit ? 0 : old + 1;
  return old;
}
inline void __threadfence() {}
