#include "kernels/cuda/host_staging.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {

absl::StatusOr<std::unique_ptr<HostStaging>> HostStaging::Create(cudaStream_t stream, int num_slots,
                                                                 int64_t slot_bytes) {
  std::unique_ptr<HostStaging> staging(new HostStaging(stream, slot_bytes));
  for (int i = 0; i < num_slots; ++i) {
    Slot& slot = staging->slots_.emplace_back();
    void* memory = nullptr;
    RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&memory, static_cast<size_t>(slot_bytes), 0),
                               "pinned memory for copies to the device"));
    slot.memory = static_cast<std::byte*>(memory);
    RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&slot.sent, cudaEventDisableTiming),
                               "an event of copies to the device"));
  }
  return staging;
}

HostStaging::~HostStaging() {
  for (Slot& slot : slots_) {
    if (slot.sent != nullptr) cudaEventSynchronize(slot.sent);
    if (slot.sent != nullptr) cudaEventDestroy(slot.sent);
    if (slot.memory != nullptr) cudaFreeHost(slot.memory);
  }
}

HostStaging::Slot& HostStaging::Acquire() {
  Slot* slot = nullptr;
  {
    std::unique_lock lock(mutex_);
    slot = &slots_[next_++ % slots_.size()];
    released_.wait(lock, [&] { return !slot->is_held; });
    slot->is_held = true;
  }
  CudaCheck(cudaEventSynchronize(slot->sent), "waiting for a copy to the device");
  return *slot;
}

void HostStaging::IssueCopy(void* device, const std::byte* pinned, int64_t bytes) {
  CudaCheck(
      cudaMemcpyAsync(device, pinned, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
      "copying to the device");
}

void HostStaging::Release(Slot& slot) {
  CudaCheck(cudaEventRecord(slot.sent, stream_), "copying to the device");
  {
    std::lock_guard lock(mutex_);
    slot.is_held = false;
  }
  released_.notify_all();
}

void HostStaging::Copy(void* device, const void* host, int64_t bytes) {
  auto* to = static_cast<std::byte*>(device);
  const auto* from = static_cast<const std::byte*>(host);
  for (int64_t at = 0; at < bytes; at += slot_bytes_) {
    const int64_t count = std::min(slot_bytes_, bytes - at);
    FillAndCopy(to + at, count,
                [&](std::byte* slot) { std::memcpy(slot, from + at, static_cast<size_t>(count)); });
  }
}

}  // namespace lockstep::cuda
