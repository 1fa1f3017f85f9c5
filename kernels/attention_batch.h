// What the host knows of a batch's attention, and what a backend may lay out of it there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

// How a batch's attention is to be laid out.
enum class AttentionCut {
  kOnce,  // as is best, and nobody will issue the same step again
  kBest,  // of a step that repeats: few forms stand for all batches of its size
  // The same, in one of those forms, so that all can be met before contexts of their lengths come:
  // whole contexts, tiles of them, and anything between; a backend may have fewer. For contexts of
  // a few tokens.
  kWhole,
  kTiles,
  kSplits,
};

// Contexts of a batch's sequences: what Backend::LayOutAttention goes by.
struct AttentionBatch {
  std::span<const int32_t> query_starts;  // [num_seqs + 1]
  std::span<const int32_t> context_lens;  // [num_seqs]
  std::span<const int32_t> table_rows;    // [num_seqs], as BatchIndex has them
  int64_t max_blocks_per_seq = 0;
  AttentionCut cut = AttentionCut::kOnce;
  // That any context of a step that repeats may come to; below the longest of this batch: that one.
  int64_t max_context_len = 0;

  int64_t MaxQueryLen() const {
    int64_t most = 0;
    for (size_t seq = 0; seq < context_lens.size(); ++seq) {
      most = std::max<int64_t>(most, query_starts[seq + 1] - query_starts[seq]);
    }
    return most;
  }
};
struct AttentionLimits {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;
  int64_t context_len = 0;
};
struct AttentionLayout {
  std::span<const std::byte> work;  // to be copied to the device beside the batch, at 32 bytes
  uint64_t form = 0;                // what is launched: batches of one size have few
};

}  // namespace lockstep
