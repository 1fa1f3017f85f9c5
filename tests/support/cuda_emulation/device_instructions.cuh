// The emulated twins of kernels/cuda/ptx/device_instructions.cuh: what its functions are said to
// do, in C++, with its rules of alignment and waiting enforced.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace lockstep::cuda {

namespace emulated {
void* DynamicShared();
}  // namespace emulated

template <typename T>
T* DynamicShared() {
  return reinterpret_cast<T*>(emulated::DynamicShared());
}

template <typename T>
uint32_t Pack(float low, float high);
template <>
uint32_t Pack<BF16>(float low, float high);
template <>
uint32_t Pack<F16>(float low, float high);
inline float Widen(F16 value) { return ToFloat(value); }
uint16_t PackE4m3(float low, float high);

template <typename T>
void ExpandE4m3(uint32_t word, uint32_t& low, uint32_t& high);
template <>
void ExpandE4m3<BF16>(uint32_t word, uint32_t& low, uint32_t& high);
template <>
void ExpandE4m3<F16>(uint32_t word, uint32_t& low, uint32_t& high);

template <typename T>
void WidenE4m3(const uint4& numbers, uint4& first, uint4& last);
template <>
void WidenE4m3<BF16>(const uint4& numbers, uint4& first, uint4& last);
template <>
void WidenE4m3<F16>(const uint4& numbers, uint4& first, uint4& last);

inline float Exp2(float x) { return exp2f(x); }
inline float Reciprocal(float x) { return 1.0f / x; }
void PrefetchToCache2(const void* address, uint32_t bytes,
                      const cuda_emulation::Site& site = std::source_location::current());
template <typename T>
T LoadFromCache2(const T* address) {
  return *address;
}
template <typename T>
T LoadOnce(const T* address) {
  return *address;
}

uint32_t LoadAcquireSystem(const uint32_t* address);
void StoreReleaseSystem(uint32_t* address, uint32_t value);
void SpinPause();

// A few blocks of a kernel that was launched beside earlier ones come here before those run.
void WaitForEarlierKernels();
inline void LetLaterKernelsBegin() {}

namespace emulated {
void Mma(bool is_f16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
         const cuda_emulation::Site& site);
}  // namespace emulated
template <typename T>
void Mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
         const cuda_emulation::Site& site = std::source_location::current()) {
  emulated::Mma(std::is_same_v<T, F16>, d, a, b, site);
}

void LoadMatrix4(uint32_t (&r)[4], const void* row,
                 const cuda_emulation::Site& site = std::source_location::current());
void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row,
                           const cuda_emulation::Site& site = std::source_location::current());

void StoreVector(float* to, const float4& x,
                 const cuda_emulation::Site& site = std::source_location::current());
void StoreVector(void* to, const uint2& x,
                 const cuda_emulation::Site& site = std::source_location::current());

inline uint4 LoadSharedVector(const uint4* from) { return *from; }
void ReadVector(const uint4* from,
                const cuda_emulation::Site& site = std::source_location::current());

// What lies at `shared` is 0xff from the call on until CopyAsyncWait has seen the copy arrive.
void CopyAsync16(void* shared, const void* global, bool valid,
                 const cuda_emulation::Site& site = std::source_location::current());
void CopyAsyncCommit();

namespace emulated {
void CopyAsyncWait(int newest);
}  // namespace emulated

template <int newest>
void CopyAsyncWait() {
  emulated::CopyAsyncWait(newest);
}

}  // namespace lockstep::cuda
