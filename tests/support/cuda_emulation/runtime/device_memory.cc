#include "tests/support/cuda_emulation/runtime/device_memory.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace lockstep::cuda_emulation {

DeviceMemory& TheDeviceMemory() {
  static DeviceMemory memory;
  return memory;
}

namespace {

// Of large ones both ends only: workspaces and, above all, the host's staging, of which tests use
// little, would cost most of their time.
void Poison(void* memory, size_t bytes, DeviceMemory::Kind kind) {
  const size_t large = kind == DeviceMemory::Kind::kPinned ? 64 << 10 : 8 << 20;
  const size_t end = std::min(bytes, large / 2);
  std::memset(memory, 0xff, bytes <= large ? bytes : end);
  if (bytes > large) std::memset(static_cast<char*>(memory) + bytes - end, 0xff, end);
}

// Whoever goes beyond the end meets a page that nobody may touch.
void* MapFile(int file, size_t bytes) {
  const auto guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* place = mmap(nullptr, bytes + guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return nullptr;
  void* mapped = mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  if (mapped != MAP_FAILED) return mapped;
  munmap(place, bytes + guard);
  return nullptr;
}

void Unmap(const DeviceMemory::Region& region) {
  munmap(region.begin, region.bytes + static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  close(region.file);
}

void* MapNewFile(size_t bytes, int* file) {
  *file = memfd_create("cuda-emulation", MFD_CLOEXEC);
  if (*file < 0) return nullptr;
  void* mapped = ftruncate(*file, static_cast<off_t>(bytes)) == 0 ? MapFile(*file, bytes) : nullptr;
  if (mapped == nullptr) close(*file);
  return mapped;
}

}  // namespace

cudaError_t DeviceMemory::Allocate(size_t bytes, Kind kind, int device, int64_t limit,
                                   void** memory) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (kind == Kind::kDevice && (bytes > static_cast<size_t>(limit) ||
                                allocated_bytes(device) + static_cast<int64_t>(bytes) > limit)) {
    return cudaErrorMemoryAllocation;
  }
  int file = -1;
  constexpr size_t kAlignment = 256;  // what cudaMalloc promises
  if (kind == Kind::kDevice && bytes % kSharedGranule == 0) {
    *memory = MapNewFile(bytes, &file);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
  } else if (posix_memalign(memory, kAlignment, bytes) != 0) {
    return cudaErrorMemoryAllocation;
  }
  Poison(*memory, bytes, kind);
  Add({static_cast<char*>(*memory), bytes, kind, device, file});
  return cudaSuccess;
}

// The lock tells the owner of it, for as long as the file is open here: who ends gives it back.
cudaError_t DeviceMemory::Import(int file, size_t bytes, int device, void** memory) {
  if (flock(file, LOCK_SH | LOCK_NB) != 0) return cudaErrorMapBufferObjectFailed;
  *memory = MapFile(file, bytes);
  if (*memory == nullptr) return cudaErrorMapBufferObjectFailed;
  Add({static_cast<char*>(*memory), bytes, Kind::kImported, device, file});
  return cudaSuccess;
}

cudaError_t DeviceMemory::Free(void* memory, Kind kind) {
  if (memory == nullptr) return cudaSuccess;
  const auto region = regions_.find(reinterpret_cast<uintptr_t>(memory));
  if (region == regions_.end() || region->second.kind != kind) return cudaErrorInvalidValue;
  const Region gone = region->second;
  found_ = {};
  regions_.erase(region);
  if (gone.file >= 0) {
    Unmap(gone);
  } else {
    std::free(memory);
  }
  return cudaSuccess;
}

void DeviceMemory::Add(const Region& region) {
  regions_[reinterpret_cast<uintptr_t>(region.begin)] = region;
}

const DeviceMemory::Region* DeviceMemory::Find(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto holds = [at](const Region& region) {
    return at - reinterpret_cast<uintptr_t>(region.begin) < region.bytes;
  };
  for (const Region* region : found_) {
    if (region != nullptr && holds(*region)) return region;
  }
  auto after = regions_.upper_bound(at);
  if (after == regions_.begin()) return nullptr;
  const Region& region = std::prev(after)->second;
  if (!holds(region)) return nullptr;
  return found_[num_found_++ % found_.size()] = &region;
}

bool DeviceMemory::Holds(const void* begin, size_t bytes) const {
  const Region* region = Find(begin);
  if (region == nullptr) return false;
  const auto offset = static_cast<size_t>(static_cast<const char*>(begin) - region->begin);
  return bytes <= region->bytes - offset;
}

bool DeviceMemory::OnDevice(const void* address) const {
  const Region* region = Find(address);
  return region != nullptr && (region->kind == Kind::kDevice || region->kind == Kind::kImported);
}

bool DeviceMemory::IsOpenElsewhere(const Region& region) {
  return region.kind == Kind::kDevice && region.file >= 0 &&
         flock(region.file, LOCK_EX | LOCK_NB) != 0;
}

int64_t DeviceMemory::allocated_bytes(int device) const {
  int64_t bytes = 0;
  for (const auto& [begin, region] : regions_) {
    if (region.kind == Kind::kDevice && region.device == device) {
      bytes += static_cast<int64_t>(region.bytes);
    }
  }
  return bytes;
}

}  // namespace lockstep::cuda_emulation
