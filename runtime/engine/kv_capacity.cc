#include "runtime/engine/kv_capacity.h"

#include <algorithm>
#include <cmath>

namespace lockstep::engine {
namespace {

constexpr int64_t kDefaultKvCacheBytes = int64_t{4} << 30;

}  // namespace

int64_t BlocksIn(int64_t budget_bytes, int64_t bytes_per_token, int64_t block_size) {
  return std::max<int64_t>(0, budget_bytes) / (bytes_per_token * block_size);
}

int64_t BlocksOf(const HostKvCache& cache) {
  if (cache.num_blocks) return *cache.num_blocks;
  if (cache.gib) {
    return BlocksIn(static_cast<int64_t>(std::llround(*cache.gib * 0x1p30)), cache.bytes_per_token,
                    cache.block_size);
  }
  const int64_t free_bytes = cache.available_bytes - cache.weight_bytes;
  const int64_t budget = std::min(kDefaultKvCacheBytes, free_bytes / 2);
  const int64_t blocks_per_sequence =
      (cache.max_model_len + cache.block_size - 1) / cache.block_size;
  return std::min(BlocksIn(budget, cache.bytes_per_token, cache.block_size),
                  cache.max_num_seqs * blocks_per_sequence);
}

}  // namespace lockstep::engine
