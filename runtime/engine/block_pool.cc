#include "runtime/engine/block_pool.h"

#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep::engine {

BlockPool::BlockPool(int64_t num_blocks, std::function<void(int32_t block)> on_evict,
                     std::function<bool(int32_t block)> keeps)
    : on_evict_(std::move(on_evict)), keeps_(std::move(keeps)) {
  LS_CHECK_GE(num_blocks, 1);
  LS_CHECK_LE(num_blocks, std::numeric_limits<int32_t>::max());
  blocks_.resize(num_blocks);
  free_.reserve(num_blocks);
  for (int64_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

BlockPool::~BlockPool() { LS_CHECK_EQ(num_in_use(), 0) << "blocks were never released"; }

bool BlockPool::Allocate(int64_t count, std::vector<int32_t>& out) {
  if (count > num_available()) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (free_.empty()) {
      const int32_t evicted = oldest_;
      if (on_evict_) on_evict_(evicted);
      Unmark(evicted);  // now it is free
    }
    const int32_t block = free_.back();
    free_.pop_back();
    blocks_[block].references = 1;
    out.push_back(block);
  }
  return true;
}

void BlockPool::AddReference(int32_t block) {
  Block& b = blocks_[block];
  LS_CHECK(b.references > 0 || b.marked) << "block " << block << " is free";
  if (b.references++ == 0) RemoveCached(block);
}

void BlockPool::Release(int32_t block) {
  Block& b = blocks_[block];
  LS_CHECK_GT(b.references, 0) << "block " << block;
  if (--b.references > 0) return;
  if (b.marked && keeps_ && !keeps_(block)) b.marked = false;
  if (b.marked) {
    PushCached(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::Mark(int32_t block) {
  LS_CHECK(IsHeld(block)) << "block " << block;
  blocks_[block].marked = true;
}

void BlockPool::Unmark(int32_t block) {
  Block& b = blocks_[block];
  if (!b.marked) return;
  b.marked = false;
  if (b.references > 0) return;
  RemoveCached(block);
  free_.push_back(block);
}

void BlockPool::PushCached(int32_t block) {
  Block& b = blocks_[block];
  b.older = newest_;
  b.newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = block;
  newest_ = block;
  ++num_cached_;
}

void BlockPool::RemoveCached(int32_t block) {
  Block& b = blocks_[block];
  (b.older == kNone ? oldest_ : blocks_[b.older].newer) = b.newer;
  (b.newer == kNone ? newest_ : blocks_[b.newer].older) = b.older;
  b.older = b.newer = kNone;
  --num_cached_;
}

void BlockPool::CheckInvariants() const {
  enum Place { kHeld, kFree, kCached };
  std::vector<Place> place(blocks_.size(), kHeld);
  for (int32_t block : free_) {
    LS_CHECK_EQ(place[block], kHeld) << "block " << block << " is free twice";
    LS_CHECK(!blocks_[block].marked) << "block " << block;
    place[block] = kFree;
  }
  int64_t num_cached = 0;
  for (int32_t block = oldest_; block != kNone; block = blocks_[block].newer, ++num_cached) {
    LS_CHECK_EQ(place[block], kHeld) << "block " << block << " is cached and free";
    LS_CHECK(blocks_[block].marked) << "block " << block;
    place[block] = kCached;
  }
  LS_CHECK_EQ(num_cached, num_cached_);
  for (size_t block = 0; block < blocks_.size(); ++block) {
    LS_CHECK_EQ(blocks_[block].references > 0, place[block] == kHeld) << "block " << block;
  }
}

}  // namespace lockstep::engine
