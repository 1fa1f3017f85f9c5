#include "launcher/serving/capacity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

constexpr int64_t kDefaultKvCacheBytes = int64_t{4} << 30;

// The dtype in which a rank keeps weights and KV cache (WeightDType: f16 is widened).
DType HeldDType(const ModelConfig& config, const std::string& flag) {
  if (flag == "f32") return DType::kF32;
  if (flag == "bf16") return DType::kBF16;
  return config.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

int64_t DefaultBlocks(const CapacityInputs& inputs, const Capacity& capacity, int64_t block_bytes) {
  const int64_t free_bytes = inputs.available_memory_bytes - capacity.weight_bytes;
  const int64_t budget = std::min(kDefaultKvCacheBytes, free_bytes / 2);
  const int64_t block_size = inputs.model.block_size;
  const int64_t blocks_per_sequence = (capacity.max_model_len + block_size - 1) / block_size;
  return std::min(budget / block_bytes, inputs.model.max_num_seqs * blocks_per_sequence);
}

int64_t BlocksAskedFor(const CapacityInputs& inputs, const Capacity& capacity,
                       int64_t block_bytes) {
  if (inputs.kv_cache.num_blocks) return *inputs.kv_cache.num_blocks;
  if (!inputs.kv_cache.gib) return DefaultBlocks(inputs, capacity, block_bytes);
  return static_cast<int64_t>(std::llround(*inputs.kv_cache.gib * 0x1p30)) / block_bytes;
}

absl::Status CheckMemory(const CapacityInputs& inputs, const Capacity& capacity,
                         int64_t block_bytes) {
  const std::string available = FormatBytes(inputs.available_memory_bytes);
  if (capacity.weight_bytes > inputs.available_memory_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the weights take ", FormatBytes(capacity.weight_bytes), " of memory, ",
                     available, " are available on this host"));
  }
  if (capacity.num_kv_blocks < 1) {
    return absl::ResourceExhaustedError(absl::StrCat("the KV cache holds no block: one takes ",
                                                     FormatBytes(block_bytes),
                                                     " over all ranks; raise --kv-cache-gib"));
  }
  const int64_t free_bytes = inputs.available_memory_bytes - capacity.weight_bytes;
  if (capacity.num_kv_blocks > free_bytes / block_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache would take ", FormatCount(capacity.num_kv_blocks), " blocks of ",
                     FormatBytes(block_bytes), ", beside the weights ", FormatBytes(free_bytes),
                     " of memory are available: lower --kv-cache-gib or --num-kv-blocks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Capacity> PlanCapacity(const CapacityInputs& inputs) {
  const ModelConfig& config = inputs.config;
  Capacity capacity;
  capacity.max_model_len =
      inputs.model.max_model_len > 0 ? inputs.model.max_model_len : config.max_position_embeddings;
  if (capacity.max_model_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat("--max-model-len ", capacity.max_model_len,
                                                   " exceeds the model's ",
                                                   config.max_position_embeddings, " positions"));
  }
  const DType held = HeldDType(config, inputs.dtype);
  const Quantization quantization =
      QuantizationOf(inputs.model.quantize).value_or(Quantization::kNone);
  ASSIGN_OR_RETURN(capacity.shards,
                   HeldShards(config, inputs.model.tp, inputs.model.pp, {held, quantization}));
  for (const RankShard& shard : capacity.shards) {
    capacity.weight_bytes += shard.weight_bytes;
    capacity.kv_bytes_per_token += shard.kv_bytes_per_token;
  }
  const int64_t block_bytes = capacity.kv_bytes_per_token * inputs.model.block_size;
  capacity.num_kv_blocks = BlocksAskedFor(inputs, capacity, block_bytes);
  RETURN_IF_ERROR(CheckMemory(inputs, capacity, block_bytes));
  return capacity;
}

}  // namespace lockstep
