#include "model/llama/pinned_slots.h"

#include <utility>

#include "kernels/base/status_macros.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<PinnedSlots>> PinnedSlots::Create(Backend& backend, int num_slots,
                                                                 int64_t slot_bytes) {
  std::unique_ptr<PinnedSlots> slots(new PinnedSlots(slot_bytes));
  ASSIGN_OR_RETURN(slots->memory_, backend.AllocateOnHost(num_slots * slot_bytes));
  for (int i = 0; i < num_slots; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<WorkMark> mark, backend.MakeMark());
    slots->copied_.push_back(std::move(mark));
    slots->there_.push_back(static_cast<size_t>(i));
  }
  return slots;
}

PinnedSlots::~PinnedSlots() {
  for (const auto& mark : copied_) mark->WaitUntilReached();
}

PinnedSlots::Slot PinnedSlots::Take() {
  size_t index = 0;
  {
    std::unique_lock lock(mutex_);
    put_back_.wait(lock, [this] { return !there_.empty(); });
    index = there_.front();
    there_.pop_front();
  }
  copied_[index]->WaitUntilReached();
  return {*this, index};
}

void PinnedSlots::PutBack(size_t index) {
  copied_[index]->Set();
  {
    const std::lock_guard lock(mutex_);
    there_.push_back(index);
  }
  put_back_.notify_one();
}

}  // namespace lockstep
