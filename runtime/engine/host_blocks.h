// Blocks of the host's memory, each of which keeps a copy of one named KV block. Called by the
// engine's thread only. Every operation costs O(1).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/engine/block_pool.h"

namespace lockstep::engine {

class HostBlocks {
 public:
  // forget hears of each name whose copy gives way to another. num_blocks >= 1.
  HostBlocks(int64_t num_blocks, std::function<void(uint64_t name)> forget);

  int64_t num_blocks() const { return pool_.num_blocks(); }
  int64_t num_in_use() const { return pool_.num_cached(); }
  // A block for a copy of it: a free one, or the one used least recently.
  int32_t Take(uint64_t name);
  uint64_t NameOf(int32_t host_block) const { return names_[host_block]; }
  void Touch(int32_t host_block);  // it is used
  void CheckInvariants() const { pool_.CheckInvariants(); }

 private:
  BlockPool pool_;  // all are cached or free
  std::vector<uint64_t> names_;
  std::vector<int32_t> taken_;  // scratch
};

}  // namespace lockstep::engine
