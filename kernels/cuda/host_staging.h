// Pinned host memory on the way to the device: callers fill a slot and go on, while the copy runs.
#pragma once

#include <cuda_runtime.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep::cuda {

// Any thread may use it. Copies are ordered with the work of the stream.
class HostStaging {
 public:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<HostStaging>> Create(cudaStream_t stream, int num_slots,
                                                             int64_t slot_bytes);
  ~HostStaging();
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  int64_t slot_bytes() const { return slot_bytes_; }
  void Copy(void* device, const void* host, int64_t bytes);
  // fill(std::byte* slot) writes `bytes`, at most slot_bytes().
  template <typename Fill>
  void FillAndCopy(void* device, int64_t bytes, const Fill& fill) {
    FillAndIssue(fill, [&](const std::byte* slot) { IssueCopy(device, slot, bytes); });
  }
  // issue(slot) issues to the stream what reads the slot; it is filled again when that is done.
  template <typename Fill, typename IssueWork>
  void FillAndIssue(const Fill& fill, const IssueWork& issue) {
    Slot& slot = Acquire();
    fill(slot.memory);
    issue(static_cast<const std::byte*>(slot.memory));
    Release(slot);
  }
  // From a slot, or other pinned memory that stays as it is until the copy is done.
  void IssueCopy(void* device, const std::byte* pinned, int64_t bytes);

 private:
  struct Slot {
    std::byte* memory = nullptr;
    cudaEvent_t sent = nullptr;
    bool is_held = false;
  };

  HostStaging(cudaStream_t stream, int64_t slot_bytes) : stream_(stream), slot_bytes_(slot_bytes) {}
  Slot& Acquire();  // waits until nobody holds it and its last copy has arrived
  void Release(Slot& slot);

  const cudaStream_t stream_;
  const int64_t slot_bytes_;
  std::mutex mutex_;
  std::condition_variable released_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace lockstep::cuda
