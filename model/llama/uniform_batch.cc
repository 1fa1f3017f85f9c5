#include "model/llama/uniform_batch.h"

#include <numeric>
#include <vector>

namespace lockstep {

StepBatch MakeUniformBatch(const UniformBatch& uniform) {
  const auto [num_seqs, context, new_tokens, block_size, vocab_size, wants_all_logits] = uniform;
  StepBatch batch;
  batch.query_starts.push_back(0);
  std::vector<int32_t> blocks(static_cast<size_t>((context + block_size - 1) / block_size));
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t first_block = seq * std::ssize(blocks);
    std::iota(blocks.begin(), blocks.end(), static_cast<int32_t>(first_block));
    AddBlockTable(blocks, batch);
    for (int64_t position = context - new_tokens; position < context; ++position) {
      batch.token_ids.push_back(
          static_cast<int32_t>((position * 7919 + seq * 104729) % vocab_size));
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slot_mapping.push_back((first_block + position / block_size) * block_size +
                                   position % block_size);
      if (wants_all_logits || position + 1 == context) {
        batch.logits_rows.push_back(static_cast<int32_t>(batch.positions.size()) - 1);
      }
    }
    batch.query_starts.push_back(static_cast<int32_t>(batch.positions.size()));
    batch.context_lens.push_back(static_cast<int32_t>(context));
  }
  return batch;
}

}  // namespace lockstep
