// The slots of a replica's ranks that no sequence holds. Called by the engine's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::engine {

class SlotPool {
 public:
  explicit SlotPool(int num_slots) : num_slots_(num_slots) { Reset(); }

  int num_slots() const { return num_slots_; }
  // The one that is free longest, so that one is opened by the plan that closes it only when no
  // other is left.
  std::optional<uint32_t> Next() const {
    if (!free_.empty()) return free_.front();
    if (num_closing_reused_ < closing_.size()) return closing_[num_closing_reused_];
    return std::nullopt;
  }
  int64_t num_free() const {
    return std::ssize(free_) + std::ssize(closing_) - static_cast<int64_t>(num_closing_reused_);
  }
  // Next, which must exist.
  uint32_t Take() {
    const uint32_t slot = Next().value();
    if (!free_.empty()) {
      free_.pop_front();
    } else {
      ++num_closing_reused_;
    }
    return slot;
  }
  // The next plan closes it, and may open it again.
  void Close(uint32_t slot) { closing_.push_back(slot); }
  // Those that this plan closes: free for later ones, but for those that it opens again.
  std::vector<uint32_t> TakeClosing() {
    free_.insert(free_.end(), closing_.begin() + num_closing_reused_, closing_.end());
    num_closing_reused_ = 0;
    return std::exchange(closing_, {});
  }
  // All are free.
  void Reset() {
    free_.clear();
    closing_.clear();
    num_closing_reused_ = 0;
    for (int slot = 0; slot < num_slots_; ++slot) free_.push_back(slot);
  }
  std::vector<uint32_t> AllUnheld() const {
    std::vector<uint32_t> slots(free_.begin(), free_.end());
    slots.insert(slots.end(), closing_.begin() + num_closing_reused_, closing_.end());
    return slots;
  }

 private:
  const int num_slots_;
  std::deque<uint32_t> free_;
  std::vector<uint32_t> closing_;
  size_t num_closing_reused_ = 0;  // the first of closing_
};

}  // namespace lockstep::engine
