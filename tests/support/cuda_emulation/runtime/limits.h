// Limits of a device (CUDA C++ Programming Guide, "Technical specifications per compute
// capability"), of 9.0 where they differ and nothing is said.
#pragma once

#include <cstddef>

namespace lockstep::cuda_emulation {

constexpr int kMostThreads = 1024;
constexpr int kMostResidentThreads = 2048;  // of a multiprocessor
constexpr int kMostThreadsDim[3] = {1024, 1024, 64};
constexpr int kMostBlocksDim[3] = {2147483647, 65535, 65535};
constexpr size_t kSharedBytesWithoutAsking = 48 << 10;  // more: cudaFuncSetAttribute
constexpr size_t kSharedBytesOfSystem = 1 << 10;        // of every block

constexpr size_t SharedBytesOfMultiprocessor(int major, int minor) {
  if (major == 8 && minor == 0) return 164 << 10;
  return major == 8 || major >= 12 ? 100 << 10 : 228 << 10;
}
constexpr size_t MostSharedBytes(int major, int minor) {
  return SharedBytesOfMultiprocessor(major, minor) - kSharedBytesOfSystem;
}

}  // namespace lockstep::cuda_emulation
