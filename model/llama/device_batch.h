// A StepBatch's index arrays on the device, in one buffer allocated once for the largest batch and
// filled by one copy; and beside it the sequences' block tables, which stay from step to step: that
// copy brings what of them is new.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/llama/block_tables.h"
#include "model/llama/step_batch.h"

namespace lockstep {

class DeviceBatch {
 public:
  DeviceBatch() = default;
  // For attention of so many heads over caches like `cache`, which may have no memory yet.
  // RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<DeviceBatch> Allocate(Backend& backend, const BatchLimits& limits,
                                              int num_heads, const KvCacheView& cache);
  // That it takes, with so many for attention's lists (Backend::ReserveAttentionWork).
  static int64_t BytesFor(const BatchLimits& limits, int64_t attention_work_bytes);

  // Takes in the batch's new blocks, of num_blocks that there are, and judges the rest
  // (CheckStepBatch). INVALID_ARGUMENT, and then it has not been.
  absl::Status Accept(const StepBatch& batch, int64_t num_blocks);
  // batch has been accepted, or is the one accepted last, padded. Batches of as many tokens lie at
  // the same addresses, as do all of no more tokens than max_num_seqs; block tables always do.
  void CopyFrom(const StepBatch& batch, Backend& backend, AttentionCut cut);
  // Sequences have no blocks until batches bring them.
  void ForgetBlockTables() { tables_.Clear(); }

  const BatchIndex& index() const { return index_; }
  int32_t* token_ids() const { return token_ids_; }
  // Of the tokens that the device chose; null: the host knows all.
  const int32_t* token_sources() const { return token_sources_; }
  const int32_t* logits_rows() const { return logits_rows_; }
  int64_t num_tokens() const { return index_.num_tokens; }
  int64_t num_logits_rows() const { return num_logits_rows_; }

 private:
  // Writes values at the next place on the host and leaves room for `capacity` of them; gives their
  // address on the device.
  template <typename T>
  T* Append(std::span<const T> values, int64_t capacity);
  template <typename T>
  T* Append(const std::vector<T>& values, int64_t capacity) {
    return Append(std::span(values), capacity);
  }

  // Of blocks that have not been sent yet, all but the last kUsualChanges.
  void SendMostBlocks(Backend& backend);

  BatchLimits limits_;
  int num_heads_ = 0;
  KvCacheView cache_;
  DeviceBuffer memory_;
  std::vector<std::byte> host_;  // what memory_ will hold
  int64_t end_ = 0;              // bytes of host_ in use
  BlockTables tables_;
  DeviceBuffer tables_memory_;              // what they are: int32 [max_num_seqs, width]
  std::vector<PlacedBlock> placed_blocks_;  // [kUsualChanges]

  BatchIndex index_;
  int32_t* token_ids_ = nullptr;
  const int32_t* token_sources_ = nullptr;
  const int32_t* logits_rows_ = nullptr;
  int64_t num_logits_rows_ = 0;
};

}  // namespace lockstep
