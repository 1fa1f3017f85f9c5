#include "model/llama/device_batch.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

constexpr int64_t kAlignment = 64;

template <typename T>
int64_t RoomFor(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t MostTokens(const BatchLimits& limits) {
  return std::max(limits.max_batched_tokens, limits.max_num_seqs);
}
int64_t MostSeqs(const BatchLimits& limits) { return limits.max_num_seqs + 1; }

int64_t ArrayBytes(const BatchLimits& limits, int64_t attention_work_bytes) {
  const int64_t tokens = MostTokens(limits);
  const int64_t seqs = MostSeqs(limits);
  return 4 * RoomFor<int32_t>(tokens) + RoomFor<int64_t>(tokens) + RoomFor<int32_t>(seqs + 1) +
         2 * RoomFor<int32_t>(seqs) + RoomFor<PlacedBlock>(BlockTables::kUsualChanges) +
         RoomFor<std::byte>(attention_work_bytes);
}

}  // namespace

int64_t DeviceBatch::BytesFor(const BatchLimits& limits, int64_t attention_work_bytes) {
  return ArrayBytes(limits, attention_work_bytes) + BlockTables::BytesFor(limits);
}

absl::StatusOr<DeviceBatch> DeviceBatch::Allocate(Backend& backend, const BatchLimits& limits,
                                                  int num_heads, const KvCacheView& cache) {
  DeviceBatch batch;
  batch.limits_ = limits;
  batch.num_heads_ = num_heads;
  batch.cache_ = cache;
  const int64_t work_bytes = backend.ReserveAttentionWork(
      {MostTokens(limits), MostSeqs(limits), limits.max_model_len}, num_heads, cache);
  const int64_t bytes = ArrayBytes(limits, work_bytes);
  ASSIGN_OR_RETURN(batch.memory_, backend.Allocate(bytes));
  batch.host_.resize(static_cast<size_t>(bytes));
  batch.tables_ = BlockTables(limits);
  batch.placed_blocks_.resize(BlockTables::kUsualChanges);
  ASSIGN_OR_RETURN(batch.tables_memory_, backend.Allocate(BlockTables::BytesFor(limits)));
  // Kernels may be loaded when they are first used: memory of zeros says what is there already.
  backend.WriteBlockTables(batch.memory_.as<PlacedBlock>(), 1, batch.tables_memory_.as<int32_t>());
  return batch;
}

absl::Status DeviceBatch::Accept(const StepBatch& batch, int64_t num_blocks) {
  RETURN_IF_ERROR(tables_.Write(batch.new_blocks, num_blocks));
  absl::Status status = CheckStepBatch(batch, limits_, tables_);
  if (!status.ok()) tables_.UndoWrite();
  return status;
}

// In the place of the batch.
void DeviceBatch::SendMostBlocks(Backend& backend) {
  while (tables_.num_changes() > BlockTables::kUsualChanges) {
    const std::span<const PlacedBlock> blocks = tables_.TakeChanged(placed_blocks_);
    backend.CopyToDevice(memory_.data(), blocks.data(), static_cast<int64_t>(blocks.size_bytes()));
    backend.WriteBlockTables(memory_.as<PlacedBlock>(), std::ssize(blocks),
                             tables_memory_.as<int32_t>());
  }
}

template <typename T>
T* DeviceBatch::Append(std::span<const T> values, int64_t capacity) {
  const auto count = static_cast<int64_t>(values.size());
  LS_CHECK(count <= capacity && end_ + RoomFor<T>(capacity) <= memory_.bytes()) << count;
  if (count > 0) std::memcpy(host_.data() + end_, values.data(), values.size_bytes());
  T* device = reinterpret_cast<T*>(memory_.as<std::byte>() + end_);
  end_ += RoomFor<T>(capacity);
  return device;
}

void DeviceBatch::CopyFrom(const StepBatch& batch, Backend& backend, AttentionCut cut) {
  const int64_t few = limits_.max_num_seqs;
  const int64_t tokens = batch.num_tokens() <= few ? few : MostTokens(limits_);
  const int64_t seqs = MostSeqs(limits_);
  const AttentionLayout layout = backend.LayOutAttention({.query_starts = batch.query_starts,
                                                          .context_lens = batch.context_lens,
                                                          .table_rows = batch.table_rows,
                                                          .max_blocks_per_seq = tables_.width(),
                                                          .cut = cut,
                                                          .max_context_len = limits_.max_model_len},
                                                         num_heads_, cache_);
  SendMostBlocks(backend);
  end_ = 0;
  token_ids_ = Append(batch.token_ids, tokens);
  logits_rows_ = Append(batch.logits_rows, tokens);
  num_logits_rows_ = static_cast<int64_t>(batch.logits_rows.size());
  index_ = {.num_tokens = batch.num_tokens(),
            .num_seqs = batch.num_seqs(),
            .positions = Append(batch.positions, tokens),
            .slot_mapping = Append(batch.slot_mapping, tokens),
            .query_starts = Append(batch.query_starts, seqs + 1),
            .context_lens = Append(batch.context_lens, seqs),
            .table_rows = Append(batch.table_rows, seqs),
            .block_tables = tables_memory_.as<int32_t>(),
            .max_blocks_per_seq = tables_.width()};
  // As long as this batch needs.
  if (!layout.work.empty()) {
    index_.attention_work = Append(layout.work, std::ssize(layout.work));
    index_.attention_form = layout.form;
  }
  // Read before steps that repeat begin: anywhere.
  const auto num_sources = static_cast<int64_t>(batch.token_sources.size());
  token_sources_ = num_sources > 0 ? Append(batch.token_sources, num_sources) : nullptr;
  const std::span<const PlacedBlock> blocks = tables_.TakeChanged(placed_blocks_);
  const PlacedBlock* const placed = Append(blocks, std::ssize(blocks));
  backend.CopyToDevice(memory_.data(), host_.data(), end_);
  if (!blocks.empty()) {
    backend.WriteBlockTables(placed, std::ssize(blocks), tables_memory_.as<int32_t>());
  }
}

}  // namespace lockstep
