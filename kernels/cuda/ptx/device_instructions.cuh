// The instructions that CUDA C++ has no word for, and the one declaration that only nvcc takes.
//
// Whoever compiles the kernels chooses by include path: these, or ones of the same names that a
// processor without a GPU can run (tests/support/cuda_emulation).
// Source of layouts: PTX ISA, "Matrix multiply-accumulate operation using mma instruction",
// "ldmatrix", "cp.async", "cp.async.bulk.prefetch", "cvt", "ex2".
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/dtype.h"

namespace lockstep::cuda {

// The block's dynamic shared memory, aligned to 16 bytes.
template <typename T>
__device__ inline T* DynamicShared() {
  extern __shared__ uint4 lockstep_dynamic_shared[];
  return reinterpret_cast<T*>(lockstep_dynamic_shared);
}

// Two floats rounded to nearest even, BF16 or F16 (infinite from 65520 on); `low` lies first in
// memory.
template <typename T>
__device__ inline uint32_t Pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<T, BF16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, F16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}
__device__ inline float Widen(F16 value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}

// Two floats rounded to nearest even to e4m3, beyond 448 to 448; `low` lies first in memory.
__device__ inline uint16_t PackE4m3(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// The four e4m3 numbers of a word, exactly, as two pairs of BF16 or F16. (e4m3's NaN becomes 480.)
// Their exponents, put where T has its own, are too small by the difference of the biases, 127 or
// 15 to 7, which a multiplication makes up for; denormals, too. Compute capability 8.0.
template <typename T>
__device__ inline void ExpandE4m3(uint32_t word, uint32_t& low, uint32_t& high) {
  constexpr bool kIsF16 = std::is_same_v<T, F16>;
  constexpr uint32_t kBias = kIsF16 ? 0x5c005c00u : 0x7b807b80u;  // 2^8, 2^120
  const auto expand = [](uint32_t bytes) {  // in the upper half of each half word
    const uint32_t bits = (bytes & 0x7f007f00u) >> (kIsF16 ? 1 : 4) | (bytes & 0x80008000u);
    uint32_t pair;
    if constexpr (kIsF16) {
      asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(bits), "r"(kBias), "r"(0x80008000u));
    } else {
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(bits), "r"(kBias), "r"(0x80008000u));
    }
    return pair;
  };
  low = expand(__byte_perm(word, 0, 0x1404));
  high = expand(__byte_perm(word, 0, 0x3424));
}

// Sixteen e4m3 numbers, exactly, as BF16 or F16, the first eight and the last; where one is NaN,
// all are. They are made as ExpandE4m3 makes them, but that a byte comes with its sign repeated,
// which one shift and one mask then put in place (an instruction less to a pair). Only out of a
// byte that is NaN does adding 1 carry into the sign, or a carry out of a NaN below it does: two
// instructions to a word, and one for all, as the multiplication then adds NaN. Compute
// capability 8.0.
template <typename T>
__device__ inline void WidenE4m3(const uint4& numbers, uint4& first, uint4& last) {
  constexpr bool kIsF16 = std::is_same_v<T, F16>;
  const auto carries = [](uint32_t word) { return (word + 0x01010101u) ^ word; };
  const uint32_t all =
      carries(numbers.x) | carries(numbers.y) | carries(numbers.z) | carries(numbers.w);
  const uint32_t addend = (all & 0x80808080u) == 0 ? 0x80008000u : 0x7fff7fffu;  // -0 or NaN
  const auto widen = [&](uint32_t word, uint32_t signed_bytes) {
    uint32_t pair;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(pair) : "r"(word), "r"(signed_bytes));
    if constexpr (kIsF16) {
      pair = pair << 7 & 0xbf80bf80u;
      asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(0x5c005c00u), "r"(addend));  // by 2^8
    } else {
      pair = pair << 4 & 0x87f087f0u;
      asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pair) : "r"(0x7b807b80u), "r"(addend));  // 2^120
    }
    return pair;
  };
  constexpr uint32_t kLow = 0x9180;
  constexpr uint32_t kHigh = 0xb3a2;
  first = make_uint4(widen(numbers.x, kLow), widen(numbers.x, kHigh), widen(numbers.y, kLow),
                     widen(numbers.y, kHigh));
  last = make_uint4(widen(numbers.z, kLow), widen(numbers.z, kHigh), widen(numbers.w, kLow),
                    widen(numbers.w, kHigh));
}

// 2^x, to about two units in the last place; 1 for 0, 0 for minus infinity, denormals are zeros.
__device__ inline float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// 1 / x, to one unit in the last place; 0 where that would be denormal.
__device__ inline float Reciprocal(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

// As it lies in the second-level cache, whatever the multiprocessor's own still holds of an earlier
// kernel: what another block has written, or another step.
template <typename T>
__device__ inline T LoadFromCache2(const T* address) {
  return __ldcg(address);
}

// Of what nobody reads again soon: first to leave the caches.
template <typename T>
__device__ inline T LoadOnce(const T* address) {
  return __ldcs(address);
}

// Has the second-level cache fetch bytes that will be read, where it can be asked (compute
// capability 9.0); both are multiples of 16.
__device__ inline void PrefetchToCache2(const void* address, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(address)),
      "r"(bytes)
      : "memory");
#endif
}

// Words that other devices and the host read and write: what a thread (and those it met at a
// barrier before) wrote ahead of the store is seen by whoever has loaded its value. Source: PTX
// ISA, "Memory Consistency Model", ld.acquire and st.release at .sys scope.
__device__ inline uint32_t LoadAcquireSystem(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void StoreReleaseSystem(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
// Between two looks at a word that another device will write; nothing here, as a look takes long.
__device__ inline void SpinPause() {}

// Of a kernel that overlaps those before it in its stream (kernels/cuda/kernel_stream.h): waits
// until they have ended and what they wrote is seen. At once in others, and where the kernel was
// compiled for what came before compute capability 9.0. Source: PTX ISA, "griddepcontrol".
__device__ inline void WaitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The kernel after this one may begin, if it is one that overlaps, as soon as all blocks of this
// one have come here. They are then on the device, so that nobody takes their place.
__device__ inline void LetLaterKernelsBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// d += a b of one warp. a: 16 x 16 of T (BF16 or F16), row-major fragments; b: 16 x 8 of T,
// column-major fragments; d: 16 x 8 f32. With g = lane / 4 and t = lane % 4 a lane holds
//   a[0], a[1]: rows g and g + 8, columns 2t, 2t + 1; a[2], a[3]: the same rows, columns + 8
//   b[0], b[1]: rows 2t, 2t + 1 of column g, and rows + 8
//   d[0..1]: row g, columns 2t, 2t + 1; d[2..3]: row g + 8
template <typename T>
__device__ inline void Mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#define LOCKSTEP_MMA(type)                                                   \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (std::is_same_v<T, BF16>) {
    LOCKSTEP_MMA("bf16");
  } else {
    static_assert(std::is_same_v<T, F16>);
    LOCKSTEP_MMA("f16");
  }
#undef LOCKSTEP_MMA
}

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + r names row r of matrix i,
// 16 bytes, 16-byte aligned. Lane 4 g + t receives elements 2t, 2t + 1 of row g of each matrix;
// transposed, elements g of rows 2t and 2t + 1.
__device__ inline void LoadMatrix4(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// To global memory, in one access; aligned to what is written. (A plain assignment of a vector made
// of parts nvcc 13 takes apart again, in RMSNorm's kernel and in SiLU's: four accesses.)
__device__ inline void StoreVector(float* to, const float4& x) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}
__device__ inline void StoreVector(void* to, const uint2& x) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(x.x),
               "r"(x.y)
               : "memory");
}

// From shared memory, in one access; aligned to 16 bytes. (Where e4m3 was expanded out of a plain
// read, nvcc 13 read its words one by one: four accesses, in each of which lanes whose vectors lie
// side by side meet in a quarter of the banks.)
__device__ inline uint4 LoadSharedVector(const uint4* from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from)))
               : "memory");
  return x;
}

// Reads 16 bytes of global memory, for nothing but that they come to the second-level cache.
__device__ inline void ReadVector(const uint4* from) {
  [[maybe_unused]] uint32_t a, b, c, d;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(__cvta_generic_to_global(from)));
}

// 16 bytes from global to shared memory, both 16-byte aligned, in the background; zeros when not
// valid (then `global` is not read). Complete after CopyAsyncWait and a barrier. The 256 bytes
// around them come to the second-level cache: what is copied so lies in long rows, of which a
// block's other threads, or its next copies, take the rest.
__device__ inline void CopyAsync16(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ inline void CopyAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the `newest` groups of this thread have arrived.
template <int newest>
__device__ inline void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}

}  // namespace lockstep::cuda
