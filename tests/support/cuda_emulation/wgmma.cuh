// The emulated twins of kernels/cuda/ptx/wgmma.cuh. A product is done when its group is waited for:
// until then its sums are NaN, and it reads its operands then. What is enforced beyond its result:
// runtime/warpgroup_products.h.
#pragma once

#include <type_traits>

#include "hopper_instructions.cuh"
#include "kernels/dtype.h"

namespace lockstep::cuda {

#define LOCKSTEP_SITE const cuda_emulation::Site& site = std::source_location::current()

namespace emulated {
void WgmmaFence(const cuda_emulation::Site& site);
// Of this thread, as floats or words: part of the fence.
void FenceRegisters(const void* registers, int count);
void WgmmaCommit(const cuda_emulation::Site& site);
struct Product {
  bool is_f16;  // or bf16
  float* sums;
  int columns;
  bool accumulate;
  const uint32_t* a_registers;  // or null, and then
  uint64_t a;
  uint64_t b;
};
void IssueProduct(const Product& product, const cuda_emulation::Site& site);
void WgmmaWait(int newest, const float* sums, const cuda_emulation::Site& site);
}  // namespace emulated

template <typename T, int n>
void PinRegisters(T (&)[n][4]) {}
template <int n>
void WgmmaFence(float (&sums)[n][4], LOCKSTEP_SITE) {
  emulated::FenceRegisters(sums, 4 * n);
  emulated::WgmmaFence(site);
}
template <int n, int m>
void WgmmaFence(float (&sums)[n][4], uint32_t (&factors)[m][4], LOCKSTEP_SITE) {
  emulated::FenceRegisters(factors, 4 * m);
  WgmmaFence(sums, site);
}
inline void WgmmaCommit(LOCKSTEP_SITE) { emulated::WgmmaCommit(site); }
template <int newest, int n>
void WgmmaWait(float (&sums)[n][4], LOCKSTEP_SITE) {
  emulated::WgmmaWait(newest, &sums[0][0], site);
}
template <typename T>
void Wgmma(float (&sums)[16][4], uint64_t a, uint64_t b, bool accumulate, LOCKSTEP_SITE) {
  emulated::IssueProduct({std::is_same_v<T, F16>, &sums[0][0], 128, accumulate, nullptr, a, b},
                         site);
}
template <typename T, int n>
void Wgmma(float (&sums)[n][4], const uint32_t (&a)[4], uint64_t b, LOCKSTEP_SITE) {
  static_assert(n == 8 || n == 16);
  emulated::IssueProduct({std::is_same_v<T, F16>, &sums[0][0], 8 * n, true, a, 0, b}, site);
}

#undef LOCKSTEP_SITE

}  // namespace lockstep::cuda
