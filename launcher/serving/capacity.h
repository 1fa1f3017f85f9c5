// How much memory a launch on this host takes, and how many KV blocks it gets. Pure arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/serving/ranks_devices.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/model_config.h"

namespace lockstep {

struct CapacityInputs {
  const ModelConfig& config;
  const ModelFlags& model;
  const RankFlags& rank;
  // Where ranks may have GPUs or not, weights count as on those, the cache as where it takes most.
  const RanksDevices& devices;
  KvCacheFlags kv_cache;  // of each replica
  int num_replicas = 1;   // that have devices.memory_bytes together
  bool share_weights = false;
};

// Of one replica.
struct PlannedCapacity {
  std::vector<RankShard> shards;   // weight_bytes as held in memory
  int64_t weight_bytes = 0;        // all ranks
  int64_t kv_bytes_per_token = 0;  // all ranks
  bool has_fp8_cache = false;
  int64_t num_kv_blocks = 0;
  int64_t offload_bytes = 0;          // of the hosts' memory, all ranks
  bool offloads_within_host = false;  // of memory that the cache could have itself
  int64_t max_model_len = 0;          // as asked for, or the model's; the cache may hold less
};

// Without a flag the cache gets half of the memory that the weights leave, at most 4 GiB, and never
// more than max_num_seqs sequences of full length can fill. INVALID_ARGUMENT (layout,
// --max-model-len beyond the model's), RESOURCE_EXHAUSTED with the numbers.
absl::StatusOr<PlannedCapacity> PlanCapacity(const CapacityInputs& inputs);
// What an operator should know of such a cache, a sentence each.
std::vector<std::string> CacheWarnings(const PlannedCapacity& capacity, const ModelConfig& config);

}  // namespace lockstep
