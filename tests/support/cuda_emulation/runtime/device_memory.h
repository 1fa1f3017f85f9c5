// Which memory the device can reach: what was allocated for it, and pinned memory of the host. Used
// with the device's lock held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "tests/support/cuda_emulation/runtime/runtime_types.h"

namespace lockstep::cuda_emulation {

class DeviceMemory {
 public:
  enum class Kind { kDevice, kPinned, kRegistered };
  struct Region {
    char* begin;
    size_t bytes;
    Kind kind;
    int device;
  };

  // From malloc, of the exact size, filled with 0xff (above 8 MiB, the ends).
  // cudaErrorMemoryAllocation beyond `limit` on the device.
  cudaError_t Allocate(size_t bytes, Kind kind, int device, int64_t limit, void** memory);
  cudaError_t Register(void* memory, size_t bytes);
  // cudaErrorInvalidValue when no region of this kind begins there.
  cudaError_t Free(void* memory, Kind kind);

  // The region that holds this byte; null when none does.
  const Region* Find(const void* address) const;
  bool Holds(const void* begin, size_t bytes) const;
  bool OnDevice(const void* address) const;
  int64_t allocated_bytes(int device) const;

 private:
  std::map<uintptr_t, Region> regions_;
};

DeviceMemory& TheDeviceMemory();

}  // namespace lockstep::cuda_emulation
