// Which memory the device can reach: what was allocated for it, here or by another process, and
// pinned memory of the host. Used with the device's lock held.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "tests/support/cuda_emulation/runtime/runtime_types.h"

namespace lockstep::cuda_emulation {

class DeviceMemory {
 public:
  enum class Kind { kDevice, kPinned, kImported };
  struct Region {
    char* begin;
    size_t bytes;
    Kind kind;
    int device;
    int file = -1;  // that it maps, so that other processes can
  };
  // Device memory in multiples of this can be opened by other processes.
  static constexpr size_t kSharedGranule = size_t{2} << 20;

  // Of the exact size, filled with 0xff (above 8 MiB, the ends): from malloc, or a mapped file.
  // cudaErrorMemoryAllocation beyond `limit` on the device.
  cudaError_t Allocate(size_t bytes, Kind kind, int device, int64_t limit, void** memory);
  // The memory that lies in another process's file, which is opened here for that and is the
  // region's from now on.
  cudaError_t Import(int file, size_t bytes, int device, void** memory);
  // cudaErrorInvalidValue when no region of this kind begins there.
  cudaError_t Free(void* memory, Kind kind);

  // The region that holds this byte; null when none does.
  const Region* Find(const void* address) const;
  bool Holds(const void* begin, size_t bytes) const;
  bool OnDevice(const void* address) const;
  // Whether another process has it imported.
  static bool IsOpenElsewhere(const Region& region);
  int64_t allocated_bytes(int device) const;

 private:
  void Add(const Region& region);

  std::map<uintptr_t, Region> regions_;
  mutable std::array<const Region*, 4> found_ = {};  // the last few
  mutable size_t num_found_ = 0;
};

DeviceMemory& TheDeviceMemory();

}  // namespace lockstep::cuda_emulation
