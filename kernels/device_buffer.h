// Memory of a device, and who else may give it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace lockstep {

// Device memory, owned. Aligned to at least 64 bytes, zero-filled at allocation.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::shared_ptr<void> memory, int64_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&&) = default;
  DeviceBuffer& operator=(DeviceBuffer&&) = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* data() const { return memory_.get(); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> memory_;  // shared_ptr<void> for its type-erased deleter; never shared
  int64_t bytes_ = 0;
};

// Memory for weights that is not the backend's own: the next region of so many bytes, aligned to at
// least 64, zero-filled or holding what a weight of that shape held before.
using WeightAllocator = std::function<absl::StatusOr<DeviceBuffer>(int64_t bytes)>;

}  // namespace lockstep
