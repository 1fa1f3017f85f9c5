// A stage's share of the paged KV cache: one allocation, its layers one after the other, of each
// the keys before the values. And of the host's memory that keeps copies of its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/device_buffer.h"
#include "kernels/kv_cache_view.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/block_copy.h"
#include "model/llama/host_kv_blocks.h"
#include "model/llama/stage_shape.h"
#include "model/llama/weights.h"

namespace lockstep {

// In which keys and values are kept. kAuto: AttentionDType. kFp8: kE4M3, by the scales that the
// checkpoint has for it, or 1.
enum class KvDType : uint8_t { kAuto, kFp8 };
// "auto", "fp8" or, as others call it, "fp8_e4m3".
std::optional<KvDType> KvDTypeOf(std::string_view name);
// The same for all stages.
absl::StatusOr<DType> KvCacheDType(const Checkpoint& checkpoint, WeightDType weights, KvDType kv,
                                   bool holds_f16);

class StageKvCache {
 public:
  // Without memory. INVALID_ARGUMENT as AttentionDType and ReadKvScales.
  static absl::StatusOr<StageKvCache> Describe(const Checkpoint& checkpoint,
                                               const StageShape& shape, int block_size,
                                               DType dtype);

  // Of each layer, without memory and scales.
  const KvCacheView& shape() const { return shape_; }
  // One block on this rank: 2 x its layers x its KV heads x block_size x head_dim x element size.
  int64_t block_bytes() const;
  int64_t num_blocks() const { return num_blocks_; }
  // Of this stage's layers.
  const KvCacheView& layer(size_t layer) const { return layers_[layer]; }

  // Anew. INVALID_ARGUMENT (num_blocks), RESOURCE_EXHAUSTED with the bytes wanted.
  absl::Status Allocate(Backend& backend, int64_t num_blocks);

  // As HostKvBlocks::Allocate.
  absl::Status AllocateHostBlocks(Backend& backend, int64_t num_blocks,
                                  const std::function<void()>& on_progress) {
    ForgetCopies();
    return host_blocks_.Allocate(backend, num_blocks, block_bytes(), on_progress);
  }
  int64_t num_host_blocks() const { return host_blocks_.num_blocks(); }
  // Copies to the host, then those from it, and waits for copies under way, these or earlier ones,
  // where others need what they write or replace what they read. INVALID_ARGUMENT (a block that
  // there is not), before any was copied.
  absl::Status Copy(Backend& backend, const StepBlocks& blocks);

 private:
  // Those that nobody has waited for, and which blocks they concern.
  struct UnderWay {
    std::vector<BlockCopy> copies;
    std::vector<bool> blocks;       // [num_blocks]
    std::vector<bool> host_blocks;  // [num_host_blocks]

    bool HasBlock(int32_t block) const { return blocks[static_cast<size_t>(block)]; }
    bool HasHostBlock(int32_t block) const { return host_blocks[static_cast<size_t>(block)]; }
    void Add(std::span<const BlockCopy> more);
    void Clear();
  };

  // Memory is about to be taken anew, which waits for them.
  void ForgetCopies() { offloads_ = prefetches_ = {}; }
  absl::Status Check(const StepBlocks& blocks) const;
  void AwaitOffloadsFor(Backend& backend, const StepBlocks& blocks);
  void AwaitPrefetchesFor(Backend& backend, const StepBlocks& blocks);
  KvBlockCopies Place(std::span<const BlockCopy> copies);

  KvCacheView shape_;
  std::vector<KvCacheView> layers_;
  int64_t num_blocks_ = 0;
  DeviceBuffer memory_;
  HostKvBlocks host_blocks_;
  std::vector<KvBlockCopy> placed_;  // scratch
  UnderWay offloads_;
  UnderWay prefetches_;
};

}  // namespace lockstep
