#include "launcher/serving/capacity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/values.h"
#include "model/llama/stage_kv_cache.h"
#include "model/llama/weights.h"
#include "runtime/engine/kv_capacity.h"

namespace lockstep {
namespace {

bool WantsFp8Cache(const CapacityInputs& inputs) {
  return KvDTypeOf(inputs.rank.kv_cache_dtype) == KvDType::kFp8;
}

absl::StatusOr<std::vector<RankShard>> ShardsOn(const CapacityInputs& inputs, bool gpus) {
  const DType held = HeldDType(WeightDTypeOf(inputs.rank.dtype).value_or(WeightDType::kAuto),
                               inputs.config.dtype, gpus);
  const Quantization quantization =
      QuantizationOf(inputs.model.quantize).value_or(Quantization::kNone);
  return HeldShards(inputs.config, inputs.model.tp, inputs.model.pp,
                    {held, quantization, inputs.devices.multiply_fp8, WantsFp8Cache(inputs)});
}

int64_t OffloadBytes(const CapacityInputs& inputs) {
  return static_cast<int64_t>(std::llround(inputs.kv_cache.offload_gib.value_or(0) * 0x1p30));
}

// Of the memory that weights and cache may take.
int64_t OffloadBytesBeside(const CapacityInputs& inputs) {
  return inputs.devices.may_be_gpus() ? 0 : OffloadBytes(inputs) * inputs.num_replicas;
}

// What a replica may take, its weights among it.
int64_t MemoryOfReplica(const CapacityInputs& inputs, int64_t weight_bytes) {
  const int64_t bytes =
      std::max<int64_t>(inputs.devices.memory_bytes - OffloadBytesBeside(inputs), 0);
  if (!inputs.share_weights) return bytes / inputs.num_replicas;
  return bytes < weight_bytes ? bytes : weight_bytes + (bytes - weight_bytes) / inputs.num_replicas;
}

std::string ForEachReplica(const CapacityInputs& inputs) {
  return inputs.num_replicas == 1 ? ""
                                  : absl::StrCat(" for each of ", inputs.num_replicas, " replicas");
}

absl::Status CheckMemory(const CapacityInputs& inputs, const PlannedCapacity& capacity,
                         int64_t block_bytes) {
  const int64_t beside = OffloadBytesBeside(inputs);
  if (beside > inputs.devices.memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("copies of KV blocks would take ",
                                                     FormatBytes(beside), ", ",
                                                     FormatBytes(inputs.devices.memory_bytes),
                                                     " of memory are available: lower "
                                                     "--kv-offload-gib"));
  }
  const char* const but_copies = beside > 0 ? " beside --kv-offload-gib" : "";
  const int64_t memory_bytes = MemoryOfReplica(inputs, capacity.weight_bytes);
  if (capacity.weight_bytes > memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the weights take ", FormatBytes(capacity.weight_bytes), " of memory, ",
        FormatBytes(memory_bytes), inputs.share_weights ? "" : ForEachReplica(inputs),
        inputs.devices.may_be_gpus()
            ? " may be taken of the ranks' GPUs (--gpu-memory-utilization): use more GPUs"
            : " are available on this host",
        but_copies, inputs.devices.why_no_gpus,
        inputs.devices.multiply_fp8 && inputs.model.quantize == "none" ? ", or --quantize fp8"
                                                                       : ""));
  }
  if (capacity.num_kv_blocks < 1) {
    return absl::ResourceExhaustedError(absl::StrCat("the KV cache holds no block: one takes ",
                                                     FormatBytes(block_bytes),
                                                     " over all ranks; raise --kv-cache-gib"));
  }
  const int64_t free_bytes = memory_bytes - capacity.weight_bytes;
  if (capacity.num_kv_blocks > free_bytes / block_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache would take ", FormatCount(capacity.num_kv_blocks), " blocks of ",
                     FormatBytes(block_bytes), ", beside the weights ",
                     beside > 0 ? "and --kv-offload-gib " : "", FormatBytes(free_bytes),
                     " of memory are available", ForEachReplica(inputs),
                     ": lower --kv-cache-gib or --num-kv-blocks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlannedCapacity> PlanCapacity(const CapacityInputs& inputs) {
  const ModelConfig& config = inputs.config;
  PlannedCapacity capacity;
  capacity.max_model_len =
      inputs.model.max_model_len > 0 ? inputs.model.max_model_len : config.max_position_embeddings;
  if (capacity.max_model_len > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-model-len ", capacity.max_model_len, " exceeds the model's ",
                     config.max_position_embeddings, " positions",
                     config.sliding_window ? ", to which its sliding window keeps contexts" : ""));
  }
  ASSIGN_OR_RETURN(capacity.shards, ShardsOn(inputs, inputs.devices.may_be_gpus()));
  for (const RankShard& shard : capacity.shards) capacity.weight_bytes += shard.weight_bytes;
  // Where an f16 checkpoint's f32 on CPUs takes most.
  ASSIGN_OR_RETURN(const std::vector<RankShard> caches,
                   ShardsOn(inputs, inputs.devices.kind == RanksDevices::Kind::kGpus));
  capacity.has_fp8_cache = WantsFp8Cache(inputs);
  for (const RankShard& shard : caches) capacity.kv_bytes_per_token += shard.kv_bytes_per_token;
  const int64_t block_bytes = capacity.kv_bytes_per_token * inputs.model.block_size;
  capacity.num_kv_blocks =
      engine::BlocksOf({.available_bytes = MemoryOfReplica(inputs, capacity.weight_bytes),
                        .weight_bytes = capacity.weight_bytes,
                        .bytes_per_token = capacity.kv_bytes_per_token,
                        .block_size = inputs.model.block_size,
                        .max_num_seqs = inputs.model.max_num_seqs,
                        .max_model_len = capacity.max_model_len,
                        .num_blocks = inputs.kv_cache.num_blocks,
                        .gib = inputs.kv_cache.gib});
  RETURN_IF_ERROR(CheckMemory(inputs, capacity, block_bytes));
  capacity.offload_bytes = OffloadBytes(inputs);
  capacity.offloads_within_host = OffloadBytesBeside(inputs) > 0;
  return capacity;
}

std::vector<std::string> CacheWarnings(const PlannedCapacity& capacity, const ModelConfig& config) {
  std::vector<std::string> warnings;
  if (capacity.has_fp8_cache && config.has_qkv_bias()) {
    warnings.push_back(
        "this model's keys have biases: where these are large, an fp8 KV cache loses what answers "
        "need (`lockstep eval` tells)");
  }
  if (capacity.offloads_within_host) {
    warnings.push_back(
        "ranks on CPUs have their KV cache in the host's memory: --kv-cache-gib makes more of it "
        "than --kv-offload-gib");
  }
  return warnings;
}

}  // namespace lockstep
