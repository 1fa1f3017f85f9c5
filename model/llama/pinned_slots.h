// Host memory that loader threads read files into and a device copies from, in slots: a thread
// reads on into another one while its last is being copied.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lockstep {

// Any thread may use it. A slot goes back with what was issued to the backend since it was taken;
// it is handed out again, the one that went back first, when that is done. Who holds one must not
// wait for another.
class PinnedSlots {
 public:
  class Slot {
   public:
    Slot(PinnedSlots& owner, size_t index) : owner_(&owner), index_(index) {}
    ~Slot() { owner_->PutBack(index_); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    std::span<std::byte> memory() const { return owner_->MemoryOf(index_); }

   private:
    PinnedSlots* owner_;
    size_t index_;
  };

  // The backend must outlive it. RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<PinnedSlots>> Create(Backend& backend, int num_slots,
                                                             int64_t slot_bytes);
  ~PinnedSlots();  // waits until nothing is copied any more
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;

  Slot Take();

 private:
  explicit PinnedSlots(int64_t slot_bytes) : slot_bytes_(slot_bytes) {}
  std::span<std::byte> MemoryOf(size_t index) const {
    const auto bytes = static_cast<size_t>(slot_bytes_);
    return {memory_.as<std::byte>() + index * bytes, bytes};
  }
  void PutBack(size_t index);

  const int64_t slot_bytes_;
  DeviceBuffer memory_;                            // of all slots
  std::vector<std::unique_ptr<WorkMark>> copied_;  // of each: behind what reads it
  std::mutex mutex_;
  std::condition_variable put_back_;
  std::deque<size_t> there_;  // guarded by mutex_: indices of slots that nobody holds
};

}  // namespace lockstep
