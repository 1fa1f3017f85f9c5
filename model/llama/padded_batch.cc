#include "model/llama/padded_batch.h"

#include <algorithm>
#include <bit>
#include <map>

namespace lockstep {
namespace {

int64_t RoundUpToPowerOfTwo(int64_t count) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
}

int64_t RoundUpDecodes(int64_t count) {
  if (count <= 4) return RoundUpToPowerOfTwo(count);
  const int64_t step = count <= 64 ? 8 : 16;
  return (count + step - 1) / step * step;
}

int64_t RoundUpToPowerOfFour(int64_t count) {
  const int64_t power = RoundUpToPowerOfTwo(count);
  return std::countr_zero(static_cast<uint64_t>(power)) % 2 == 0 ? power : 2 * power;
}

PaddedShape ShapeOfDecodes(int64_t num_seqs, const BatchLimits& limits) {
  PaddedShape shape;
  shape.num_tokens =
      std::min({RoundUpDecodes(num_seqs), limits.max_num_seqs, limits.max_batched_tokens});
  shape.num_seqs = shape.num_tokens;
  return shape;
}

// One sequence at least has two tokens, so that there are fewer sequences than tokens.
PaddedShape ShapeOfChunks(int64_t num_tokens, int64_t num_seqs, const BatchLimits& limits) {
  PaddedShape shape;
  shape.has_chunks = true;
  shape.num_tokens = std::min(std::max(RoundUpToPowerOfTwo(num_tokens), kMinPaddedChunkTokens),
                              limits.max_batched_tokens);
  shape.num_seqs =
      1 + std::min({RoundUpToPowerOfFour(num_seqs), shape.num_tokens - 1, limits.max_num_seqs});
  return shape;
}

}  // namespace

// Limits are below 2^25 (CheckBatchLimits), the sequences of chunks no more than
// kMaxPaddedChunkTokens; what is left of a shape follows from these.
uint64_t PaddedShape::Key() const {
  const int64_t num_chunk_seqs = has_chunks ? num_seqs : 0;
  return static_cast<uint64_t>(num_tokens) << 9 | static_cast<uint64_t>(num_chunk_seqs) << 1 |
         (wants_logits ? 1 : 0);
}

std::optional<PaddedShape> PaddedShapeFor(const StepBatch& batch, const BatchLimits& limits) {
  const bool has_chunks = batch.num_tokens() != batch.num_seqs();
  if (batch.num_tokens() == 0 || (has_chunks && batch.num_tokens() > kMaxPaddedChunkTokens)) {
    return std::nullopt;
  }
  PaddedShape shape = has_chunks ? ShapeOfChunks(batch.num_tokens(), batch.num_seqs(), limits)
                                 : ShapeOfDecodes(batch.num_seqs(), limits);
  shape.wants_logits = !batch.logits_rows.empty();
  return shape;
}

std::vector<PaddedShape> AllPaddedShapes(const BatchLimits& limits, bool wants_logits) {
  std::map<uint64_t, PaddedShape> shapes;
  const auto add = [&](PaddedShape shape) {
    shape.wants_logits = wants_logits;
    shapes.emplace(shape.Key(), shape);
  };
  const int64_t most_chunk_tokens = std::min(kMaxPaddedChunkTokens, limits.max_batched_tokens);
  for (int64_t tokens = 2; tokens <= most_chunk_tokens; ++tokens) {
    const int64_t most_seqs = std::min(tokens - 1, limits.max_num_seqs);
    for (int64_t seqs = 1; seqs <= most_seqs; ++seqs) add(ShapeOfChunks(tokens, seqs, limits));
  }
  const int64_t most_decodes = std::min(limits.max_num_seqs, limits.max_batched_tokens);
  for (int64_t seqs = 1; seqs <= most_decodes; ++seqs) add(ShapeOfDecodes(seqs, limits));
  std::vector<PaddedShape> all;
  for (const auto& [key, shape] : shapes) all.push_back(shape);
  std::reverse(all.begin(), all.end());  // keys ascend with tokens
  return all;
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
  padded.table_rows = batch.table_rows;
  padded.logits_rows = batch.logits_rows;
  padded.token_ids.resize(num_tokens, 0);
  if (!padded.token_sources.empty()) padded.token_sources.resize(num_tokens, -1);
  padded.positions.resize(num_tokens, 0);
  padded.slot_mapping.resize(num_tokens, -1);
  padded.context_lens.resize(num_seqs, 0);
  padded.table_rows.resize(num_seqs, 0);
  // Of chunks, the first sequence added has all tokens added, those after it have none.
  const int64_t num_added = shape.has_chunks ? shape.num_tokens - batch.num_tokens() : 1;
  while (padded.query_starts.size() <= num_seqs) {
    const int64_t end = padded.query_starts.back() + num_added;
    padded.query_starts.push_back(static_cast<int32_t>(std::min(end, shape.num_tokens)));
  }
  if (shape.wants_logits) padded.logits_rows.resize(num_tokens, 0);
}

}  // namespace lockstep
