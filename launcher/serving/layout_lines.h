// Which ranks a launch has and what they hold and cache, as people read it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/serving/capacity.h"

namespace lockstep {

struct ShownLayout {
  int tp = 1;
  int pp = 1;
  int num_replicas = 1;
  std::optional<int> threads_per_rank;  // nothing where ranks find out themselves
};
// The whole, then each stage with its layers, ranks and the largest rank's weights.
std::vector<std::string> LayoutLines(const ShownLayout& layout, const PlannedCapacity& capacity);

struct ShownCache {
  int64_t num_blocks = 0;
  int64_t num_host_blocks = 0;  // copies
  int64_t max_model_len = 0;
  int block_size = 1;
  int64_t bytes_per_token = 0;  // of all ranks
  bool is_fp8 = false;

  int64_t num_tokens() const { return num_blocks * block_size; }
  int64_t num_sequences() const;  // of full length
};
std::vector<std::string> CacheLines(const ShownCache& cache);

}  // namespace lockstep
