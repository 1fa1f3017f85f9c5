// The index arrays of a flat batch, on the device. Sequences lie one after another; a prefill chunk
// has several tokens, a decode one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct BatchIndex {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  // [num_tokens], 0-based position in its sequence: those of a sequence ascend one by one, the last
  // being its context_lens - 1
  const int32_t* positions = nullptr;
  // [num_tokens], block_id * block_size + offset: where its K/V goes
  const int64_t* slot_mapping = nullptr;
  // [num_seqs + 1], first token of each sequence; last = num_tokens
  const int32_t* query_starts = nullptr;
  // [num_seqs], tokens in the cache once this batch is written
  const int32_t* context_lens = nullptr;
  // [num_seqs], the row of block_tables that has the sequence's blocks. Not read for sequences
  // without context.
  const int32_t* table_rows = nullptr;
  // [rows, max_blocks_per_seq], kept from step to step (Backend::WriteBlockTables).
  const int32_t* block_tables = nullptr;
  int64_t max_blocks_per_seq = 0;
  // What Backend::LayOutAttention wrote of this batch; null where that has nothing to lay out.
  const std::byte* attention_work = nullptr;
  uint64_t attention_form = 0;

  // Of a sequence; where the host reads the device's memory.
  const int32_t* BlockTable(int64_t seq) const {
    return block_tables + table_rows[seq] * max_blocks_per_seq;
  }
};

// A block that goes into a block table, at `place` counted from the first entry of the first row.
struct PlacedBlock {
  int32_t place = 0;
  int32_t block = 0;
};

}  // namespace lockstep
