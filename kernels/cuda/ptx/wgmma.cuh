// Products of a warpgroup (Hopper, sm_90a): 64 rows, in the background.
//
// Order of calls: WgmmaFence of all registers that products write or read, Wgmma any number of
// times, WgmmaCommit, WgmmaWait for what was committed. Between the fence and the wait nobody may
// touch those registers.
// Source: PTX ISA, "wgmma.mma_async", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group".
#pragma once

#include <type_traits>

#include "hopper_instructions.cuh"
#include "kernels/dtype.h"

namespace lockstep::cuda {

// Keeps the compiler, which takes a product's results for known once it is issued, from moving what
// reads or writes these registers past here.
template <int n>
__device__ inline void PinRegisters(float (&registers)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(registers[i][e])::"memory");
  }
}
template <int n>
__device__ inline void PinRegisters(uint32_t (&registers)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(registers[i][e])::"memory");
  }
}

// `sums`, which products will write, and what was written of the others, which they will read.
template <int n>
__device__ inline void WgmmaFence(float (&sums)[n][4]) {
  PinRegisters(sums);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int n, int m>
__device__ inline void WgmmaFence(float (&sums)[n][4], uint32_t (&factors)[m][4]) {
  PinRegisters(factors);
  WgmmaFence(sums);
}
__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the `newest` groups committed are done; `sums` belong to one that is.
template <int newest, int n>
__device__ inline void WgmmaWait(float (&sums)[n][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
  PinRegisters(sums);
}

// clang-format off
#define LOCKSTEP_SUMS_1(i) "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])
#define LOCKSTEP_SUMS_4(i) LOCKSTEP_SUMS_1(i), LOCKSTEP_SUMS_1(i + 1), LOCKSTEP_SUMS_1(i + 2), LOCKSTEP_SUMS_1(i + 3)
#define LOCKSTEP_SUMS_8(i) LOCKSTEP_SUMS_4(i), LOCKSTEP_SUMS_4(i + 4)
#define LOCKSTEP_REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LOCKSTEP_REGISTERS_64 LOCKSTEP_REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// One product of T, by body(T's name).
#define LOCKSTEP_OF_TYPE(body) \
  if constexpr (std::is_same_v<T, BF16>) { \
    body("bf16"); \
  } else { \
    static_assert(std::is_same_v<T, F16>); \
    body("f16"); \
  }
#define LOCKSTEP_WGMMA(columns, type) "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type
#define LOCKSTEP_SHARED_TIMES_128(type) \
  asm volatile("{\n" \
               ".reg .pred p;\n" \
               "setp.ne.b32 p, %66, 0;\n" \
               LOCKSTEP_WGMMA("128", type) " {" LOCKSTEP_REGISTERS_64 "}, %64, %65, p, 1, 1, 0, 0;\n" \
               "}" \
               : LOCKSTEP_SUMS_8(0), LOCKSTEP_SUMS_8(8) \
               : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)))
#define LOCKSTEP_REGISTERS_TIMES_128(type) \
  asm volatile(LOCKSTEP_WGMMA("128", type) " {" LOCKSTEP_REGISTERS_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;" \
               : LOCKSTEP_SUMS_8(0), LOCKSTEP_SUMS_8(8) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define LOCKSTEP_REGISTERS_TIMES_64(type) \
  asm volatile(LOCKSTEP_WGMMA("64", type) " {" LOCKSTEP_REGISTERS_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;" \
               : LOCKSTEP_SUMS_8(0) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// clang-format on

// sums (+)= a b: a [64, 16] and b [16, 8 n] of T (BF16 or F16) in shared memory, by descriptors,
// both with the 16 running. With w = warp % 4, g = lane / 4 and t = lane % 4 a lane holds
//   sums[j][0..1]: row 16 w + g, columns 8 j + 2 t and the next; sums[j][2..3]: row 16 w + g + 8
template <typename T>
__device__ inline void Wgmma(float (&sums)[16][4], uint64_t a, uint64_t b, bool accumulate) {
  LOCKSTEP_OF_TYPE(LOCKSTEP_SHARED_TIMES_128)
}

// sums += a b: a in registers as Mma takes it, of each warp its 16 rows; b [16, 8 n] in shared
// memory with the 8 n running ("transposed").
template <typename T>
__device__ inline void Wgmma(float (&sums)[16][4], const uint32_t (&a)[4], uint64_t b) {
  LOCKSTEP_OF_TYPE(LOCKSTEP_REGISTERS_TIMES_128)
}
template <typename T>
__device__ inline void Wgmma(float (&sums)[8][4], const uint32_t (&a)[4], uint64_t b) {
  LOCKSTEP_OF_TYPE(LOCKSTEP_REGISTERS_TIMES_64)
}

#undef LOCKSTEP_OF_TYPE
#undef LOCKSTEP_WGMMA
#undef LOCKSTEP_SHARED_TIMES_128
#undef LOCKSTEP_REGISTERS_TIMES_128
#undef LOCKSTEP_REGISTERS_TIMES_64
#undef LOCKSTEP_SUMS_1
#undef LOCKSTEP_SUMS_4
#undef LOCKSTEP_SUMS_8
#undef LOCKSTEP_REGISTERS_32
#undef LOCKSTEP_REGISTERS_64

}  // namespace lockstep::cuda
