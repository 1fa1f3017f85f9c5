// How much memory a launch on this host takes, and how many KV blocks it gets. Pure arithmetic.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/accelerator.h"
#include "launcher/cli/serving_flags.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/model_config.h"

namespace lockstep {

struct KvCacheFlags {
  std::optional<double> gib;  // over all ranks
  std::optional<int64_t> num_blocks;
};

// What ranks may take of their GPUs in all, where each host has GPUs like these: of those that have
// a rank.
int64_t MemoryOfGpus(const std::vector<AcceleratorInfo>& gpus, int ranks_per_host, int num_hosts,
                     double gpu_memory_utilization);

// FAILED_PRECONDITION if one of those is known not to do.
absl::Status CheckGpus(const std::vector<AcceleratorInfo>& gpus, int ranks_per_host);

struct CapacityInputs {
  const ModelConfig& config;
  const ModelFlags& model;
  const std::string& dtype;  // RankFlags::dtype
  bool on_gpus = false;
  bool multiplies_fp8 = false;  // AcceleratorInfo, of all of them
  KvCacheFlags kv_cache;
  int64_t available_memory_bytes = 0;  // of the GPUs, or the host
  // Ranks may have GPUs or not: weights count as on those, the cache as where it takes most.
  bool device_is_unknown = false;
  std::string why_no_gpus = {};  // "; no GPU is used: ..." where they were looked for
};

struct Capacity {
  std::vector<RankShard> shards;   // weight_bytes as held in memory
  int64_t weight_bytes = 0;        // all ranks
  int64_t kv_bytes_per_token = 0;  // all ranks
  int64_t num_kv_blocks = 0;
  int64_t max_model_len = 0;  // as asked for, or the model's; the cache may hold less
};

// Without a flag the cache gets half of the memory that the weights leave, at most 4 GiB, and never
// more than max_num_seqs sequences of full length can fill. INVALID_ARGUMENT (layout,
// --max-model-len beyond the model's), RESOURCE_EXHAUSTED with the numbers.
absl::StatusOr<Capacity> PlanCapacity(const CapacityInputs& inputs);

}  // namespace lockstep
