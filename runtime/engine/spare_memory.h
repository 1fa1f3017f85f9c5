// What a rank's KV cache leaves of the memory that is there for it: no two measurements are the
// same, and the number of blocks agreed on must fit ranks that come later, too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep {

inline constexpr int64_t kSparePart = 32;
inline constexpr int64_t kMostSpareBytes = int64_t{256} << 20;

// Of left_bytes >= 0.
inline int64_t SpareBytes(int64_t left_bytes) {
  return std::min(left_bytes / kSparePart, kMostSpareBytes);
}

// The least that must be left for a cache of cache_bytes >= 0 and what is spared beside it.
inline int64_t LeftBytesFor(int64_t cache_bytes) {
  const int64_t whole_parts = (std::max<int64_t>(cache_bytes, 1) - 1) / (kSparePart - 1);
  return cache_bytes + std::min(whole_parts, kMostSpareBytes);
}

}  // namespace lockstep
