#include "model/llama/device_batch.h"

#include <algorithm>
#include <vector>

#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

template <typename T>
absl::Status AllocateArray(Backend& backend, int64_t count, DeviceBuffer& buffer) {
  ASSIGN_OR_RETURN(buffer, backend.Allocate(count * static_cast<int64_t>(sizeof(T))));
  return absl::OkStatus();
}

template <typename T>
const T* Copy(const std::vector<T>& host, const DeviceBuffer& device, Backend& backend) {
  const int64_t bytes = static_cast<int64_t>(host.size() * sizeof(T));
  if (bytes > 0) backend.CopyToDevice(device.data(), host.data(), bytes);
  return device.as<T>();
}

}  // namespace

absl::StatusOr<DeviceBatch> DeviceBatch::Allocate(Backend& backend, const BatchLimits& limits) {
  const int64_t tokens = limits.max_batched_tokens;
  const int64_t seqs = limits.max_num_seqs;
  DeviceBatch batch;
  RETURN_IF_ERROR(AllocateArray<int32_t>(backend, tokens, batch.token_ids_));
  RETURN_IF_ERROR(AllocateArray<int32_t>(backend, tokens, batch.positions_));
  RETURN_IF_ERROR(AllocateArray<int64_t>(backend, tokens, batch.slot_mapping_));
  RETURN_IF_ERROR(AllocateArray<int32_t>(backend, tokens, batch.logits_rows_));
  RETURN_IF_ERROR(AllocateArray<int32_t>(backend, seqs + 1, batch.query_starts_));
  RETURN_IF_ERROR(AllocateArray<int32_t>(backend, seqs, batch.context_lens_));
  RETURN_IF_ERROR(
      AllocateArray<int32_t>(backend, seqs * limits.max_blocks_per_seq(), batch.block_tables_));
  return batch;
}

void DeviceBatch::CopyFrom(const StepBatch& batch, Backend& backend) {
  Copy(batch.token_ids, token_ids_, backend);
  Copy(batch.logits_rows, logits_rows_, backend);
  num_logits_rows_ = static_cast<int64_t>(batch.logits_rows.size());
  index_ = {.num_tokens = batch.num_tokens(),
            .num_seqs = batch.num_seqs(),
            .max_blocks_per_seq = batch.max_blocks_per_seq,
            .positions = Copy(batch.positions, positions_, backend),
            .slot_mapping = Copy(batch.slot_mapping, slot_mapping_, backend),
            .query_starts = Copy(batch.query_starts, query_starts_, backend),
            .context_lens = Copy(batch.context_lens, context_lens_, backend),
            .block_tables = Copy(batch.block_tables, block_tables_, backend)};
  for (int64_t seq = 0; seq < batch.num_seqs(); ++seq) {
    const auto at = static_cast<size_t>(seq);
    index_.max_query_len = std::max<int64_t>(index_.max_query_len,
                                             batch.query_starts[at + 1] - batch.query_starts[at]);
    index_.max_context_len = std::max<int64_t>(index_.max_context_len, batch.context_lens[at]);
  }
}

}  // namespace lockstep
