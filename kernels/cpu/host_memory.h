// Memory of the CPU bodies: zero-filled, aligned to at least 64 bytes, on huge pages where it is
// large.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/check.h"
#include "kernels/device_buffer.h"

namespace lockstep::cpu {

// INVALID_ARGUMENT for a negative size, RESOURCE_EXHAUSTED when the system refuses.
absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes);

// Scratch of a kernel: grows when a larger shape comes along, never shrinks, forgets its contents
// when it grows.
class Scratch {
 public:
  // At least `bytes` bytes, valid until the next call. Running out of scratch is fatal: it is small
  // beside the weights.
  void* Reserve(int64_t bytes) {
    if (bytes > buffer_.bytes()) {
      auto grown = AllocateHost(bytes + bytes / 2);
      LS_CHECK(grown.ok()) << grown.status();
      buffer_ = *std::move(grown);
    }
    return buffer_.data();
  }
  template <typename T>
  T* ReserveArray(int64_t count) {
    return static_cast<T*>(Reserve(count * static_cast<int64_t>(sizeof(T))));
  }

 private:
  DeviceBuffer buffer_;
};

}  // namespace lockstep::cpu
