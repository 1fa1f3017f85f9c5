// The words that CUDA C++ adds to C++, for a compiler that does not know them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// One block runs at a time, so a function's shared variable can be a static one. Each lies in a
// section of its own, whose bounds the linker tells, so that every block finds it filled with 0xff.
// (Two variables of one section, one of them of an inline function, GCC refuses: GCC bug 41091.)
// AddressSanitizer guards no variable with a section; with it they keep their redzones instead, and
// a block that waits for another device finds what other blocks have left there.
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define LOCKSTEP_SECTION_OF(number) __attribute__((section("cuda_shared_" #number)))
#define LOCKSTEP_SECTION(number) LOCKSTEP_SECTION_OF(number)
#define __shared__ static LOCKSTEP_SECTION(__COUNTER__)
#endif

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define LOCKSTEP_VECTORS(type, element)                                          \
  struct alignas(2 * sizeof(element)) type##2 {                                  \
    element x, y;                                                                \
  };                                                                             \
  struct alignas(4 * sizeof(element)) type##4 {                                  \
    element x, y, z, w;                                                          \
  };                                                                             \
  constexpr type##2 make_##type##2(element x, element y) { return {x, y}; }      \
  constexpr type##4 make_##type##4(element x, element y, element z, element w) { \
    return {x, y, z, w};                                                         \
  }
LOCKSTEP_VECTORS(float, float)
LOCKSTEP_VECTORS(int, int)
LOCKSTEP_VECTORS(uint, unsigned)
LOCKSTEP_VECTORS(short, short)
LOCKSTEP_VECTORS(ushort, unsigned short)
LOCKSTEP_VECTORS(uchar, unsigned char)
#undef LOCKSTEP_VECTORS

// Those of the thread that has its turn.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
constexpr int warpSize = 32;
