#include "runtime/engine/host_blocks.h"

#include <utility>

#include "kernels/base/check.h"

namespace lockstep::engine {

HostBlocks::HostBlocks(int64_t num_blocks, std::function<void(uint64_t name)> forget)
    : pool_(num_blocks,
            [this, forget = std::move(forget)](int32_t block) { forget(names_[block]); }),
      names_(num_blocks) {}

int32_t HostBlocks::Take(uint64_t name) {
  taken_.clear();
  LS_CHECK(pool_.Allocate(1, taken_));
  const int32_t block = taken_.front();
  names_[block] = name;
  pool_.Mark(block);
  pool_.Release(block);
  return block;
}

void HostBlocks::Touch(int32_t host_block) {
  pool_.AddReference(host_block);
  pool_.Release(host_block);
}

}  // namespace lockstep::engine
