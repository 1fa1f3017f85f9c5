// Limits of a device of compute capability 9.0 (CUDA C++ Programming Guide, "Technical
// specifications per compute capability").
#pragma once

#include <cstddef>

namespace lockstep::cuda_emulation {

constexpr int kMostThreads = 1024;
constexpr int kMostResidentThreads = 2048;  // of a multiprocessor
constexpr int kMostThreadsDim[3] = {1024, 1024, 64};
constexpr int kMostBlocksDim[3] = {2147483647, 65535, 65535};
constexpr size_t kSharedBytesWithoutAsking = 48 << 10;  // more: cudaFuncSetAttribute
constexpr size_t kMostSharedBytes = 227 << 10;
constexpr size_t kSharedBytesOfMultiprocessor = 228 << 10;

}  // namespace lockstep::cuda_emulation
