#include "model/llama/padded_batch.h"

#include <algorithm>
#include <bit>

namespace lockstep {
namespace {

constexpr int64_t kShortestContext = 256;

int64_t RoundUpToPowerOfTwo(int64_t count) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
}

int64_t RoundUpDecodes(int64_t count) {
  if (count <= 4) return RoundUpToPowerOfTwo(count);
  return (count + 7) / 8 * 8;
}

int64_t RoundUpToPowerOfFour(int64_t count) {
  const int64_t power = RoundUpToPowerOfTwo(count);
  return std::countr_zero(static_cast<uint64_t>(power)) % 2 == 0 ? power : 2 * power;
}

// To 1, 1.25, 1.5 or 1.75 times a power of two.
int64_t RoundUpContext(int64_t count) {
  if (count <= kShortestContext) return kShortestContext;
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count - 1))) / 4;
  return (count + step - 1) / step * step;
}

void SetDecodes(const StepBatch& batch, const BatchLimits& limits, PaddedShape& shape) {
  shape.num_tokens = std::min(
      {RoundUpDecodes(batch.num_tokens()), limits.max_num_seqs, limits.max_batched_tokens});
  shape.num_seqs = shape.num_tokens;
}

// One sequence at least has two tokens, so that there are fewer sequences than tokens.
void SetChunks(const StepBatch& batch, const BatchLimits& limits, PaddedShape& shape) {
  shape.has_chunks = true;
  shape.num_tokens =
      std::min(std::max(RoundUpToPowerOfTwo(batch.num_tokens()), kMinPaddedChunkTokens),
               limits.max_batched_tokens);
  shape.num_seqs = 1 + std::min({RoundUpToPowerOfFour(batch.num_seqs()), shape.num_tokens - 1,
                                 limits.max_num_seqs});
}

}  // namespace

// Limits are below 2^25 (CheckBatchLimits), the sequences of chunks no more than
// kMaxPaddedChunkTokens; what is left of a shape follows from these.
uint64_t PaddedShape::Key() const {
  const int64_t num_chunk_seqs = has_chunks ? num_seqs : 0;
  return static_cast<uint64_t>(max_context_len) << 34 | static_cast<uint64_t>(num_tokens) << 9 |
         static_cast<uint64_t>(num_chunk_seqs) << 1 | (wants_logits ? 1 : 0);
}

std::optional<PaddedShape> PaddedShapeFor(const StepBatch& batch, const BatchLimits& limits) {
  const bool has_chunks = batch.num_tokens() != batch.num_seqs();
  if (batch.num_tokens() == 0 || (has_chunks && batch.num_tokens() > kMaxPaddedChunkTokens)) {
    return std::nullopt;
  }
  PaddedShape shape;
  if (has_chunks) {
    SetChunks(batch, limits, shape);
  } else {
    SetDecodes(batch, limits, shape);
  }
  const int64_t longest = *std::max_element(batch.context_lens.begin(), batch.context_lens.end());
  shape.max_context_len = std::min(RoundUpContext(longest), limits.max_model_len);
  shape.max_blocks_per_seq = (shape.max_context_len + limits.block_size - 1) / limits.block_size;
  shape.wants_logits = !batch.logits_rows.empty();
  return shape;
}

void Pad(const StepBatch& batch, const PaddedShape& shape, StepBatch& padded) {
  const auto num_tokens = static_cast<size_t>(shape.num_tokens);
  const auto num_seqs = static_cast<size_t>(shape.num_seqs);
  padded.token_ids = batch.token_ids;
  padded.token_sources = batch.token_sources;
  padded.positions = batch.positions;
  padded.slot_mapping = batch.slot_mapping;
  padded.query_starts = batch.query_starts;
  padded.context_lens = batch.context_lens;
  padded.logits_rows = batch.logits_rows;
  padded.token_ids.resize(num_tokens, 0);
  if (!padded.token_sources.empty()) padded.token_sources.resize(num_tokens, -1);
  padded.positions.resize(num_tokens, 0);
  padded.slot_mapping.resize(num_tokens, -1);
  padded.context_lens.resize(num_seqs, 0);
  // Of chunks, the first sequence added has all tokens added, those after it have none.
  const int64_t num_added = shape.has_chunks ? shape.num_tokens - batch.num_tokens() : 1;
  while (padded.query_starts.size() <= num_seqs) {
    const int64_t end = padded.query_starts.back() + num_added;
    padded.query_starts.push_back(static_cast<int32_t>(std::min(end, shape.num_tokens)));
  }
  if (shape.wants_logits) padded.logits_rows.resize(num_tokens, 0);
  padded.max_blocks_per_seq = shape.max_blocks_per_seq;
  const int64_t width = std::min(batch.max_blocks_per_seq, shape.max_blocks_per_seq);
  padded.block_tables.assign(static_cast<size_t>(batch.num_seqs() * shape.max_blocks_per_seq), 0);
  for (int64_t seq = 0; seq < batch.num_seqs(); ++seq) {
    std::copy_n(batch.block_tables.begin() + seq * batch.max_blocks_per_seq, width,
                padded.block_tables.begin() + seq * shape.max_blocks_per_seq);
  }
}

}  // namespace lockstep
