// Device memory of a kernel, as much as it has ever needed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

// What was given out before stays, for recorded steps may use it.
class GrowingMemory {
 public:
  GrowingMemory() = default;
  ~GrowingMemory() {
    for (void* memory : all_) cudaFree(memory);
  }
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  // Aligned to 256 bytes. No recorded step makes it grow: it has run once before it is recorded.
  void* AtLeast(int64_t bytes) {
    if (bytes <= bytes_) return all_.back();
    void* memory = nullptr;
    CudaCheck(cudaMalloc(&memory, static_cast<size_t>(bytes)), "memory of a kernel");
    all_.push_back(memory);
    bytes_ = bytes;
    return memory;
  }

 private:
  std::vector<void*> all_;
  int64_t bytes_ = 0;  // of the last
};

}  // namespace lockstep::cuda
