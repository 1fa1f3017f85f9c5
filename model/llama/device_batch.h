// A StepBatch's index arrays on the device, in buffers allocated once for the largest batch.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/llama/step_batch.h"

namespace lockstep {

class DeviceBatch {
 public:
  DeviceBatch() = default;
  // RESOURCE_EXHAUSTED when memory is short.
  static absl::StatusOr<DeviceBatch> Allocate(Backend& backend, const BatchLimits& limits);

  // batch has passed CheckStepBatch with the same limits.
  void CopyFrom(const StepBatch& batch, Backend& backend);

  const BatchIndex& index() const { return index_; }
  const int32_t* token_ids() const { return token_ids_.as<int32_t>(); }
  const int32_t* logits_rows() const { return logits_rows_.as<int32_t>(); }
  int64_t num_tokens() const { return index_.num_tokens; }
  int64_t num_logits_rows() const { return num_logits_rows_; }

 private:
  BatchIndex index_;
  int64_t num_logits_rows_ = 0;
  DeviceBuffer token_ids_;     // int32 [max_batched_tokens]
  DeviceBuffer positions_;     // int32 [max_batched_tokens]
  DeviceBuffer slot_mapping_;  // int64 [max_batched_tokens]
  DeviceBuffer logits_rows_;   // int32 [max_batched_tokens]
  DeviceBuffer query_starts_;  // int32 [max_num_seqs + 1]
  DeviceBuffer context_lens_;  // int32 [max_num_seqs]
  DeviceBuffer block_tables_;  // int32 [max_num_seqs, max_blocks_per_seq]
};

}  // namespace lockstep
