// Bytes on their way to the device in one copy, whatever they belong to. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {

class DeviceInput {
 public:
  // backend must outlive it. RESOURCE_EXHAUSTED.
  static absl::StatusOr<DeviceInput> Create(Backend& backend, int64_t bytes) {
    ASSIGN_OR_RETURN(DeviceBuffer device, backend.Allocate(bytes));
    return DeviceInput(backend, std::move(device));
  }

  void Clear() { host_.clear(); }
  // Where work issued after Upload finds them; aligned to 8 bytes. There must be room.
  template <typename T>
  const T* Append(std::span<const T> values) {
    host_.resize((host_.size() + 7) / 8 * 8);
    const std::byte* device = device_.as<std::byte>() + host_.size();
    const std::span<const std::byte> bytes = std::as_bytes(values);
    host_.insert(host_.end(), bytes.begin(), bytes.end());
    LS_CHECK_LE(static_cast<int64_t>(host_.size()), device_.bytes());
    return reinterpret_cast<const T*>(device);
  }
  // Without waiting; ordered with the backend's work.
  void Upload() {
    backend_->CopyToDevice(device_.data(), host_.data(), static_cast<int64_t>(host_.size()));
  }

 private:
  DeviceInput(Backend& backend, DeviceBuffer device)
      : backend_(&backend), device_(std::move(device)) {
    host_.reserve(static_cast<size_t>(device_.bytes()));
  }

  Backend* backend_;
  DeviceBuffer device_;
  std::vector<std::byte> host_;  // what the device will hold
};

}  // namespace lockstep
