#include "model/llama/stage_kv_cache.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/kv_scales.h"

namespace lockstep {

std::optional<KvDType> KvDTypeOf(std::string_view name) {
  if (name == "auto") return KvDType::kAuto;
  if (name == "fp8" || name == "fp8_e4m3") return KvDType::kFp8;
  return std::nullopt;
}

absl::StatusOr<DType> KvCacheDType(const Checkpoint& checkpoint, WeightDType weights, KvDType kv,
                                   bool holds_f16) {
  if (kv == KvDType::kFp8) return DType::kE4M3;
  return AttentionDType(checkpoint, weights, holds_f16);
}

absl::StatusOr<StageKvCache> StageKvCache::Describe(const Checkpoint& checkpoint,
                                                    const StageShape& shape, int block_size,
                                                    DType dtype) {
  StageKvCache cache;
  cache.shape_ = {.dtype = dtype,
                  .num_kv_heads = static_cast<int>(shape.kv_heads.size()),
                  .block_size = block_size,
                  .head_dim = static_cast<int>(shape.head_dim)};
  for (int64_t layer = shape.layers.begin; layer < shape.layers.end; ++layer) {
    KvCacheView& view = cache.layers_.emplace_back(cache.shape_);
    if (dtype != DType::kE4M3) continue;
    ASSIGN_OR_RETURN(const KvScales scales, ReadKvScales(checkpoint, layer));
    view.k_scale = scales.k;
    view.v_scale = scales.v;
  }
  return cache;
}

int64_t StageKvCache::block_bytes() const {
  return 2 * static_cast<int64_t>(layers_.size()) * shape_.num_kv_heads * shape_.block_size *
         shape_.head_dim * DTypeBytes(shape_.dtype);
}

absl::Status StageKvCache::Allocate(Backend& backend, int64_t num_blocks) {
  int64_t bytes = 0;
  if (num_blocks < 1 || num_blocks > INT32_MAX ||
      __builtin_mul_overflow(num_blocks, block_bytes(), &bytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV cache of %d blocks of %d bytes", num_blocks, block_bytes()));
  }
  num_blocks_ = 0;
  for (KvCacheView& view : layers_) view.k = view.v = nullptr;
  memory_ = {};  // before the next is there: both may not fit
  ASSIGN_OR_RETURN(memory_, backend.Allocate(bytes));
  const int64_t half_layer_bytes = bytes / (2 * static_cast<int64_t>(layers_.size()));
  std::byte* next = memory_.as<std::byte>();
  for (KvCacheView& view : layers_) {
    view.k = next;
    view.v = next + half_layer_bytes;
    view.num_blocks = num_blocks;
    next += 2 * half_layer_bytes;
  }
  num_blocks_ = num_blocks;
  return absl::OkStatus();
}

}  // namespace lockstep
