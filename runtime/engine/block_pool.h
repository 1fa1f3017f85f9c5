// The logical KV blocks of one replica: who holds each, and which are free. Called by the engine's
// thread only.
//
// Invariant: a block is in exactly one of three places: free, cached (no holder, but it keeps a
// prefix worth reusing), or held by one or more block tables (reference count). Every operation
// costs O(1) per block named, whatever the pool's size.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace lockstep::engine {

class BlockPool {
 public:
  // on_evict hears of every cached block that is about to lose its prefix to a new holder. keeps is
  // asked of every marked block that has lost its last holder: false, and it is unmarked and free.
  // num_blocks >= 1.
  explicit BlockPool(int64_t num_blocks, std::function<void(int32_t block)> on_evict = {},
                     std::function<bool(int32_t block)> keeps = {});
  ~BlockPool();  // CHECKs that every block came back
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_in_use() const { return num_blocks() - num_free() - num_cached(); }
  int64_t num_available() const { return num_free() + num_cached(); }

  // Appends `count` blocks, each with one reference, to `out`; all or nothing. Free blocks go
  // first, then the cached ones, least recently used first.
  bool Allocate(int64_t count, std::vector<int32_t>& out);
  void AddReference(int32_t block);  // of a held or cached block
  void Release(
      int32_t block);  // one reference; the last one frees the block, or caches it if marked

  // Whether the block holds a reusable prefix. Marked while held; unmarked at any time.
  void Mark(int32_t block);
  void Unmark(int32_t block);
  bool IsHeld(int32_t block) const { return blocks_[block].references > 0; }
  int32_t num_references(int32_t block) const { return blocks_[block].references; }

  // Counts everything: O(num_blocks), for tests.
  void CheckInvariants() const;

 private:
  static constexpr int32_t kNone = -1;
  struct Block {
    int32_t references = 0;
    bool marked = false;
    int32_t older = kNone;  // neighbours in the list of cached blocks
    int32_t newer = kNone;
  };

  void PushCached(int32_t block);
  void RemoveCached(int32_t block);

  std::function<void(int32_t)> on_evict_;
  std::function<bool(int32_t)> keeps_;
  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack
  int32_t oldest_ = kNone;
  int32_t newest_ = kNone;
  int64_t num_cached_ = 0;
};

// The blocks of one sequence, in position order. Gives its references back when it dies.
class BlockTable {
 public:
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  ~BlockTable() { Clear(); }
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  std::span<const int32_t> blocks() const { return blocks_; }

  bool Grow(int64_t count) { return pool_->Allocate(count, blocks_); }
  void Adopt(int32_t block) { blocks_.push_back(block); }  // with the caller's reference
  // Last block first: a prefix is worth more than what follows it, so its beginning is evicted
  // last.
  void Clear() {
    for (; !blocks_.empty(); blocks_.pop_back()) pool_->Release(blocks_.back());
  }

 private:
  BlockPool* pool_;
  std::vector<int32_t> blocks_;
};

}  // namespace lockstep::engine
