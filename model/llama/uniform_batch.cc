#include "model/llama/uniform_batch.h"

namespace lockstep {

StepBatch MakeUniformBatch(const UniformBatch& uniform) {
  const auto [num_seqs, context, new_tokens, block_size, vocab_size] = uniform;
  StepBatch batch;
  batch.query_starts.push_back(0);
  batch.max_blocks_per_seq = (context + block_size - 1) / block_size;
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t first_block = seq * batch.max_blocks_per_seq;
    for (int64_t block = 0; block < batch.max_blocks_per_seq; ++block) {
      batch.block_tables.push_back(static_cast<int32_t>(first_block + block));
    }
    for (int64_t position = context - new_tokens; position < context; ++position) {
      batch.token_ids.push_back(
          static_cast<int32_t>((position * 7919 + seq * 104729) % vocab_size));
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slot_mapping.push_back((first_block + position / block_size) * block_size +
                                   position % block_size);
    }
    batch.query_starts.push_back(static_cast<int32_t>(batch.positions.size()));
    batch.context_lens.push_back(static_cast<int32_t>(context));
    batch.logits_rows.push_back(static_cast<int32_t>(batch.positions.size()) - 1);
  }
  return batch;
}

}  // namespace lockstep
