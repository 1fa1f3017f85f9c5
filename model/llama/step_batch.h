// One step's flat batch as the host builds it, and what the model needs to know of the cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

// The last block of a sequence's block table from now on. index: how many there are before it.
struct NewBlock {
  int32_t table_row = 0;
  int32_t index = 0;
  int32_t block = 0;
};

// Tokens of several sequences, one after another; prefill chunks and decodes mixed.
struct StepBatch {
  std::vector<int32_t> token_ids;  // [num_tokens]; read by the first stage only
  // [num_tokens], or empty if all are -1: >= 0 where the token is the one at that place among those
  // that the device chose last (kernels/token_choice.h), whatever its id here. First stage only.
  std::vector<int32_t> token_sources;
  std::vector<int32_t> positions;     // [num_tokens], consecutive within a sequence
  std::vector<int64_t> slot_mapping;  // [num_tokens], block_id * block_size + offset
  std::vector<int32_t> query_starts;  // [num_seqs + 1]
  std::vector<int32_t> context_lens;  // [num_seqs], cached tokens once this batch is written
  // [num_seqs], where each sequence's block table is among those that the stage keeps
  // (block_tables.h)
  std::vector<int32_t> table_rows;
  // Written there before the step, in this order; of sequences that have no token in it, too.
  std::vector<NewBlock> new_blocks;
  std::vector<int32_t> logits_rows;  // ascending token indices whose logits are wanted (last stage)

  int64_t num_tokens() const { return static_cast<int64_t>(positions.size()); }
  int64_t num_seqs() const { return static_cast<int64_t>(context_lens.size()); }
};

// The largest batch the step loop will ever hand over; buffers are allocated for it once.
struct BatchLimits {
  int64_t max_batched_tokens = 2048;
  int64_t max_num_seqs = 256;
  int64_t max_model_len = 4096;
  int block_size = 16;

  int64_t max_blocks_per_seq() const { return (max_model_len + block_size - 1) / block_size; }
};

// INVALID_ARGUMENT naming the field, its value and the range it must lie in.
absl::Status CheckBatchLimits(const BatchLimits& limits);

// Makes room for the largest batch of unpadded or padded steps.
void Reserve(const BatchLimits& limits, StepBatch& batch);
// Adds the block table of the batch's next sequence, whole, in the row of the sequence's number.
void AddBlockTable(std::span<const int32_t> blocks, StepBatch& batch);
// A step without tokens that brings the batch's new blocks, and the batch without them: of steps
// that are repeated all but the first have none.
StepBatch TakeNewBlocks(StepBatch& batch);

class BlockTables;

// Could this batch make a kernel touch memory it should not? INVALID_ARGUMENT naming the first
// entry that is out of range or disagrees with another, or with tables, which have its new blocks
// already. Token ids are not judged: an unknown one embeds as zeros. Costs a few nanoseconds per
// token.
absl::Status CheckStepBatch(const StepBatch& batch, const BatchLimits& limits,
                            const BlockTables& tables);

}  // namespace lockstep
