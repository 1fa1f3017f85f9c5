#include "tests/support/cuda_emulation/runtime/static_shared.h"

#include <cstddef>
#include <cstring>

// clang-format off
#define LOCKSTEP_TEN(each, n) \
  each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) \
  each(n##5) each(n##6) each(n##7) each(n##8) each(n##9)
// More than a hundred shared variables in one source file are not expected.
#define LOCKSTEP_HUNDRED(each) \
  LOCKSTEP_TEN(each, ) LOCKSTEP_TEN(each, 1) LOCKSTEP_TEN(each, 2) LOCKSTEP_TEN(each, 3) \
  LOCKSTEP_TEN(each, 4) LOCKSTEP_TEN(each, 5) LOCKSTEP_TEN(each, 6) LOCKSTEP_TEN(each, 7) \
  LOCKSTEP_TEN(each, 8) LOCKSTEP_TEN(each, 9)
// clang-format on

// The linker defines where each section begins and ends; those that do not exist are null.
#define LOCKSTEP_BOUNDS(n)                                                           \
  extern char __start_cuda_shared_##n[] __attribute__((weak, visibility("hidden"))); \
  extern char __stop_cuda_shared_##n[] __attribute__((weak, visibility("hidden")));
LOCKSTEP_HUNDRED(LOCKSTEP_BOUNDS)

namespace lockstep::cuda_emulation {

namespace {

void Fill(char* begin, const char* end, unsigned char byte) {
  if (begin != nullptr) std::memset(begin, byte, static_cast<size_t>(end - begin));
}

void Append(const char* begin, const char* end, std::vector<char>& saved) {
  if (begin != nullptr) saved.insert(saved.end(), begin, end);
}

void TakeBack(char* begin, const char* end, const char*& saved) {
  if (begin == nullptr) return;
  std::memcpy(begin, saved, static_cast<size_t>(end - begin));
  saved += end - begin;
}

}  // namespace

void FillStaticShared(unsigned char byte) {
#define LOCKSTEP_FILL(n) Fill(__start_cuda_shared_##n, __stop_cuda_shared_##n, byte);
  LOCKSTEP_HUNDRED(LOCKSTEP_FILL)
}

void SaveStaticShared(std::vector<char>& saved) {
  saved.clear();
#define LOCKSTEP_SAVE(n) Append(__start_cuda_shared_##n, __stop_cuda_shared_##n, saved);
  LOCKSTEP_HUNDRED(LOCKSTEP_SAVE)
}

void RestoreStaticShared(const std::vector<char>& saved) {
  const char* from = saved.data();
#define LOCKSTEP_RESTORE(n) TakeBack(__start_cuda_shared_##n, __stop_cuda_shared_##n, from);
  LOCKSTEP_HUNDRED(LOCKSTEP_RESTORE)
}

}  // namespace lockstep::cuda_emulation
