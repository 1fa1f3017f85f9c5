#include "model/llama/padded_batch.h"

#include <algorithm>
#include <bit>

namespace lockstep {
namespace {

constexpr int64_t kShortestContext = 256;

int64_t RoundUpTokens(int64_t count) {
  if (count <= 4) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  return (count + 7) / 8 * 8;
}

// To 1, 1.25, 1.5 or 1.75 times a power of two.
int64_t RoundUpContext(int64_t count) {
  if (count <= kShortestContext) return kShortestContext;
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1))) / 4;
  return (count + step - 1) / step * step;
}

}  // namespace

uint64_t PaddedShape::Key() const {
  // A context has fewer than 2^31 tokens, a step fewer than 2^20 (limits of the flags), and the
  // tables' width follows from the context.
  return static_cast<uint64_t>(max_context_len) << 32 | static_cast<uint64_t>(num_tokens) << 1 |
         (wants_logits ? 1 : 0);
}

std::optional<PaddedShape> PaddedShapeFor(const StepBatch& batch, const BatchLimits& limits) {
  const int64_t num_tokens = batch.num_tokens();
  const auto num_logits = static_cast<int64_t>(batch.logits_rows.size());
  if (num_tokens == 0 || num_tokens != batch.num_seqs()) return std::nullopt;
  if (num_logits != 0 && num_logits != num_tokens) return std::nullopt;
  const int64_t longest = *std::max_element(batch.context_lens.begin(), batch.context_lens.end());
  PaddedShape shape;
  shape.num_tokens =
      std::min({RoundUpTokens(num_tokens), limits.max_num_seqs, limits.max_batched_tokens});
  shape.max_context_len = std::min(RoundUpContext(longest), limits.max_model_len);
  shape.max_blocks_per_seq = (shape.max_context_len + limits.block_size - 1) / limits.block_size;
  shape.wants_logits = num_logits > 0;
  return shape;
}

void Pad(const StepBatch& batch, const PaddedShape& shape, StepBatch& padded) {
  const auto num_tokens = static_cast<size_t>(shape.num_tokens);
  padded.token_ids = batch.token_ids;
  padded.positions = batch.positions;
  padded.slot_mapping = batch.slot_mapping;
  padded.query_starts = batch.query_starts;
  padded.context_lens = batch.context_lens;
  padded.logits_rows = batch.logits_rows;
  padded.token_ids.resize(num_tokens, 0);
  padded.positions.resize(num_tokens, 0);
  padded.slot_mapping.resize(num_tokens, -1);
  padded.context_lens.resize(num_tokens, 0);
  while (padded.query_starts.size() <= num_tokens) {
    padded.query_starts.push_back(padded.query_starts.back() + 1);
  }
  if (shape.wants_logits) padded.logits_rows.resize(num_tokens, 0);
  padded.max_blocks_per_seq = shape.max_blocks_per_seq;
  const int64_t width = std::min(batch.max_blocks_per_seq, shape.max_blocks_per_seq);
  padded.block_tables.assign(num_tokens * static_cast<size_t>(shape.max_blocks_per_seq), 0);
  for (int64_t seq = 0; seq < batch.num_seqs(); ++seq) {
    std::copy_n(batch.block_tables.begin() + seq * batch.max_blocks_per_seq, width,
                padded.block_tables.begin() + seq * shape.max_blocks_per_seq);
  }
}

}  // namespace lockstep
