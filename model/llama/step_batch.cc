#include "model/llama/step_batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/llama/block_tables.h"

namespace lockstep {
namespace {

absl::Status CheckRange(const char* name, int64_t index, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "batch: %s[%d] is %d, which is not between %d and %d", name, index, value, low, high));
}

absl::Status CheckSize(const char* name, size_t size, int64_t expected) {
  if (static_cast<int64_t>(size) == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("batch: %s has %d entries where %d belong", name, size, expected));
}

absl::Status CheckSizes(const StepBatch& batch, const BatchLimits& limits) {
  const int64_t num_tokens = batch.num_tokens();
  const int64_t num_seqs = batch.num_seqs();
  if (num_tokens > limits.max_batched_tokens || num_seqs > limits.max_num_seqs) {
    return absl::InvalidArgumentError(
        absl::StrFormat("batch of %d tokens and %d sequences exceeds the limits %d, %d", num_tokens,
                        num_seqs, limits.max_batched_tokens, limits.max_num_seqs));
  }
  RETURN_IF_ERROR(CheckSize("token_ids", batch.token_ids.size(), num_tokens));
  if (!batch.token_sources.empty()) {
    RETURN_IF_ERROR(CheckSize("token_sources", batch.token_sources.size(), num_tokens));
  }
  RETURN_IF_ERROR(CheckSize("slot_mapping", batch.slot_mapping.size(), num_tokens));
  RETURN_IF_ERROR(CheckSize("query_starts", batch.query_starts.size(), num_seqs + 1));
  RETURN_IF_ERROR(CheckSize("table_rows", batch.table_rows.size(), num_seqs));
  RETURN_IF_ERROR(CheckRange("query_starts", 0, batch.query_starts.front(), 0, 0));
  return CheckRange("query_starts", num_seqs, batch.query_starts.back(), num_tokens, num_tokens);
}

absl::Status CheckSequence(const StepBatch& batch, int64_t seq, const BatchLimits& limits,
                           const BlockTables& tables) {
  const size_t s = static_cast<size_t>(seq);
  const int64_t begin = batch.query_starts[s];
  const int64_t end = batch.query_starts[s + 1];
  RETURN_IF_ERROR(CheckRange("query_starts", seq + 1, end, begin + 1, batch.num_tokens()));
  RETURN_IF_ERROR(CheckRange("table_rows", seq, batch.table_rows[s], 0, tables.num_rows() - 1));
  const std::span<const int32_t> blocks = tables.row(batch.table_rows[s]);
  const int64_t context = batch.context_lens[s];
  const int64_t capacity = std::ssize(blocks) * limits.block_size;
  RETURN_IF_ERROR(CheckRange("context_lens", seq, context, end - begin,
                             std::min(capacity, limits.max_model_len)));
  for (int64_t t = begin; t < end; ++t) {
    const int64_t position = context - (end - t);
    const size_t token = static_cast<size_t>(t);
    RETURN_IF_ERROR(CheckRange("positions", t, batch.positions[token], position, position));
    const int64_t block = blocks[static_cast<size_t>(position / limits.block_size)];
    const int64_t slot = block * limits.block_size + position % limits.block_size;
    RETURN_IF_ERROR(CheckRange("slot_mapping", t, batch.slot_mapping[token], slot, slot));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBatchLimits(const BatchLimits& limits) {
  constexpr int64_t kMax = int64_t{1} << 24;
  const std::pair<const char*, int64_t> fields[] = {
      {"max_batched_tokens", limits.max_batched_tokens},
      {"max_num_seqs", limits.max_num_seqs},
      {"max_model_len", limits.max_model_len},
      {"block_size", limits.block_size},
  };
  for (const auto& [name, value] : fields) {
    if (value >= 1 && value <= kMax) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %d; it must be between 1 and %d", name, value, kMax));
  }
  const int64_t entries = limits.max_num_seqs * limits.max_blocks_per_seq();
  if (entries <= INT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("block tables of %d sequences with %d blocks each have %d entries; at most "
                      "%d are possible",
                      limits.max_num_seqs, limits.max_blocks_per_seq(), entries, INT32_MAX));
}

void Reserve(const BatchLimits& limits, StepBatch& batch) {
  const auto tokens = static_cast<size_t>(std::max(limits.max_batched_tokens, limits.max_num_seqs));
  const auto seqs = static_cast<size_t>(limits.max_num_seqs) + 1;
  for (auto* of_tokens :
       {&batch.token_ids, &batch.token_sources, &batch.positions, &batch.logits_rows}) {
    of_tokens->reserve(tokens);
  }
  batch.slot_mapping.reserve(tokens);
  batch.query_starts.reserve(seqs + 1);
  batch.context_lens.reserve(seqs);
  batch.table_rows.reserve(seqs);
  batch.new_blocks.reserve(BlockTables::kUsualChanges);
}

void AddBlockTable(std::span<const int32_t> blocks, StepBatch& batch) {
  const auto row = static_cast<int32_t>(batch.table_rows.size());
  batch.table_rows.push_back(row);
  for (size_t i = 0; i < blocks.size(); ++i) {
    batch.new_blocks.push_back({row, static_cast<int32_t>(i), blocks[i]});
  }
}

StepBatch TakeNewBlocks(StepBatch& batch) {
  StepBatch taken;
  taken.new_blocks = std::exchange(batch.new_blocks, {});
  return taken;
}

absl::Status CheckStepBatch(const StepBatch& batch, const BatchLimits& limits,
                            const BlockTables& tables) {
  if (batch.num_tokens() == 0 && batch.num_seqs() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckSizes(batch, limits));
  for (int64_t seq = 0; seq < batch.num_seqs(); ++seq) {
    RETURN_IF_ERROR(CheckSequence(batch, seq, limits, tables));
  }
  for (size_t i = 0; i < batch.token_sources.size(); ++i) {
    RETURN_IF_ERROR(CheckRange("token_sources", static_cast<int64_t>(i), batch.token_sources[i], -1,
                               limits.max_num_seqs - 1));
  }
  int64_t next = 0;
  for (size_t i = 0; i < batch.logits_rows.size(); ++i) {
    RETURN_IF_ERROR(CheckRange("logits_rows", static_cast<int64_t>(i), batch.logits_rows[i], next,
                               batch.num_tokens() - 1));
    next = batch.logits_rows[i] + 1;
  }
  return absl::OkStatus();
}

}  // namespace lockstep
