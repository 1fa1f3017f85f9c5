// How many KV blocks fit: the one rule by which `serve` sizes the cache and `plan` predicts it.
// Pure arithmetic; any thread.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep::engine {

// Whole blocks in a budget; 0 when it is negative. bytes_per_token, block_size >= 1.
int64_t BlocksIn(int64_t budget_bytes, int64_t bytes_per_token, int64_t block_size);

// A cache in the memory of one host, over all ranks.
struct HostKvCache {
  int64_t available_bytes = 0;  // before weights
  int64_t weight_bytes = 0;
  int64_t bytes_per_token = 0;
  int64_t block_size = 16;
  int64_t max_num_seqs = 256;
  int64_t max_model_len = 0;
  std::optional<int64_t> num_blocks;  // as asked for, or
  std::optional<double> gib;          // this much, or else the default
};

// Without a wish half of the memory that the weights leave, at most 4 GiB, and never more than
// max_num_seqs sequences of full length can fill. The caller checks that it is there.
int64_t BlocksOf(const HostKvCache& cache);

}  // namespace lockstep::engine
