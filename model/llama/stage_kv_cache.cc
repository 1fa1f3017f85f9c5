#include "model/llama/stage_kv_cache.h"

#include <algorithm>

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
  ForgetCopies();
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

absl::Status StageKvCache::Check(std::span<const BlockCopy> copies) const {
  for (const BlockCopy& copy : copies) {
    const bool is_there = copy.block >= 0 && copy.block < num_blocks_ && copy.host_block >= 0 &&
                          copy.host_block < num_host_blocks();
    if (is_there) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("a copy between block %d of %d and block %d of the host's %d", copy.block,
                        num_blocks_, copy.host_block, num_host_blocks()));
  }
  return absl::OkStatus();
}

// In the order in which Allocate has laid it out, a block has a piece in each half of a layer.
KvBlockCopies StageKvCache::Place(std::span<const BlockCopy> copies) {
  placed_.clear();
  for (const BlockCopy& copy : copies) {
    placed_.push_back({copy.block, host_blocks_.at(copy.host_block)});
  }
  const int64_t num_pieces = 2 * static_cast<int64_t>(layers_.size());
  return {.cache = memory_.as<std::byte>(),
          .num_pieces = num_pieces,
          .num_blocks = num_blocks_,
          .piece_bytes = block_bytes() / num_pieces,
          .copies = placed_};
}

void StageKvCache::AwaitIfNeeded(Backend& backend, std::span<const BlockCopy> restored,
                                 std::span<const int32_t> written) {
  const auto is_read = [&](int32_t block) { return is_read_[static_cast<size_t>(block)]; };
  const bool is_needed =
      std::any_of(written.begin(), written.end(), is_read) ||
      std::any_of(restored.begin(), restored.end(), [&](const BlockCopy& copy) {
        return is_read(copy.block) || is_written_[static_cast<size_t>(copy.host_block)];
      });
  if (!is_needed) return;
  backend.AwaitOffloads();
  for (const BlockCopy& copy : under_way_) {
    is_read_[static_cast<size_t>(copy.block)] = false;
    is_written_[static_cast<size_t>(copy.host_block)] = false;
  }
  under_way_.clear();
}

absl::Status StageKvCache::Copy(Backend& backend, std::span<const BlockCopy> offloaded,
                                std::span<const BlockCopy> restored,
                                std::span<const int32_t> written) {
  RETURN_IF_ERROR(Check(offloaded));
  RETURN_IF_ERROR(Check(restored));
  for (const int32_t block : written) {
    if (block >= 0 && block < num_blocks_) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("block %d is granted, there are %d", block, num_blocks_));
  }
  is_read_.resize(static_cast<size_t>(num_blocks_));
  is_written_.resize(static_cast<size_t>(num_host_blocks()));
  AwaitIfNeeded(backend, restored, written);
  if (!offloaded.empty()) {
    backend.OffloadKv(Place(offloaded));
    for (const BlockCopy& copy : offloaded) {
      const bool is_known = is_read_[static_cast<size_t>(copy.block)] &&
                            is_written_[static_cast<size_t>(copy.host_block)];
      is_read_[static_cast<size_t>(copy.block)] = true;
      is_written_[static_cast<size_t>(copy.host_block)] = true;
      if (!is_known) under_way_.push_back(copy);
    }
    AwaitIfNeeded(backend, restored, written);
  }
  if (!restored.empty()) backend.RestoreKv(Place(restored));
  return absl::OkStatus();
}

}  // namespace lockstep
