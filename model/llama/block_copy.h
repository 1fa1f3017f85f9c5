// A block of the KV cache, and one of the host's memory that keeps a copy of it.
#pragma once

#include <cstdint>

namespace lockstep {

struct BlockCopy {
  int32_t block = 0;
  int32_t host_block = 0;
  bool operator==(const BlockCopy&) const = default;
};

}  // namespace lockstep
