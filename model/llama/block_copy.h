// Blocks of the KV cache, and blocks of the host's memory that keep copies of them.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep {

struct BlockCopy {
  int32_t block = 0;
  int32_t host_block = 0;
  bool operator==(const BlockCopy&) const = default;
};

// Of one step, whose work comes after all but `prefetched`.
struct StepBlocks {
  std::span<const BlockCopy> offloaded;   // to the host; they may run beside this step and others
  std::span<const BlockCopy> restored;    // from there, after that
  std::span<const BlockCopy> prefetched;  // likewise, for later steps; may run beside this one
  std::span<const int32_t> granted;       // that this step and later ones may read
  std::span<const int32_t> written;       // of those the ones that they may write to
};

}  // namespace lockstep
