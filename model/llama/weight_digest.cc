#include "model/llama/weight_digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lockstep {

void WeightDigest::Add(const void* piece, int64_t bytes, int64_t offset) {
  const uint64_t hash =
      XXH3_64bits_withSeed(piece, static_cast<size_t>(bytes), static_cast<uint64_t>(offset));
  value_.fetch_xor(hash, std::memory_order_relaxed);
}

}  // namespace lockstep
