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

absl::Status StageKvCache::Check(const StepBlocks& blocks) const {
  for (const auto& copies : {blocks.offloaded, blocks.restored, blocks.prefetched}) {
    for (const BlockCopy& copy : copies) {
      const bool is_there = copy.block >= 0 && copy.block < num_blocks_ && copy.host_block >= 0 &&
                            copy.host_block < num_host_blocks();
      if (is_there) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("a copy between block %d of %d and block %d of the host's %d", copy.block,
                          num_blocks_, copy.host_block, num_host_blocks()));
    }
  }
  for (const auto& granted : {blocks.granted, blocks.written}) {
    for (const int32_t block : granted) {
      if (block >= 0 && block < num_blocks_) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("block %d is granted, there are %d", block, num_blocks_));
    }
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

void StageKvCache::UnderWay::Add(std::span<const BlockCopy> more) {
  for (const BlockCopy& copy : more) {
    const bool is_known = HasBlock(copy.block) && HasHostBlock(copy.host_block);
    blocks[static_cast<size_t>(copy.block)] = true;
    host_blocks[static_cast<size_t>(copy.host_block)] = true;
    if (!is_known) copies.push_back(copy);
  }
}

void StageKvCache::UnderWay::Clear() {
  for (const BlockCopy& copy : copies) {
    blocks[static_cast<size_t>(copy.block)] = false;
    host_blocks[static_cast<size_t>(copy.host_block)] = false;
  }
  copies.clear();
}

// They read blocks, and write what the host has of them.
void StageKvCache::AwaitOffloadsFor(Backend& backend, const StepBlocks& blocks) {
  const auto is_read = [this](int32_t block) { return offloads_.HasBlock(block); };
  const auto concern = [&](const BlockCopy& copy) {
    return is_read(copy.block) || offloads_.HasHostBlock(copy.host_block);
  };
  const bool are_needed = std::ranges::any_of(blocks.written, is_read) ||
                          std::ranges::any_of(blocks.restored, concern) ||
                          std::ranges::any_of(blocks.prefetched, concern);
  if (!are_needed) return;
  backend.AwaitOffloads();
  offloads_.Clear();
}

// They write blocks, and read what the host has of them.
void StageKvCache::AwaitPrefetchesFor(Backend& backend, const StepBlocks& blocks) {
  const auto is_written = [this](int32_t block) { return prefetches_.HasBlock(block); };
  const bool are_needed =
      std::ranges::any_of(blocks.granted, is_written) ||
      std::ranges::any_of(blocks.offloaded, [&](const BlockCopy& copy) {
        return is_written(copy.block) || prefetches_.HasHostBlock(copy.host_block);
      });
  if (!are_needed) return;
  backend.AwaitPrefetches();
  prefetches_.Clear();
}

// What is restored is granted, and what is prefetched is prefetched after what was before.
absl::Status StageKvCache::Copy(Backend& backend, const StepBlocks& blocks) {
  RETURN_IF_ERROR(Check(blocks));
  for (UnderWay* under_way : {&offloads_, &prefetches_}) {
    under_way->blocks.resize(static_cast<size_t>(num_blocks_));
    under_way->host_blocks.resize(static_cast<size_t>(num_host_blocks()));
  }
  AwaitPrefetchesFor(backend, blocks);
  AwaitOffloadsFor(backend, blocks);
  if (!blocks.offloaded.empty()) {
    backend.OffloadKv(Place(blocks.offloaded));
    offloads_.Add(blocks.offloaded);
    AwaitOffloadsFor(backend, blocks);
  }
  if (!blocks.restored.empty()) backend.RestoreKv(Place(blocks.restored));
  if (!blocks.prefetched.empty()) {
    backend.PrefetchKv(Place(blocks.prefetched));
    prefetches_.Add(blocks.prefetched);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
