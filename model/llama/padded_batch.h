// Small steps, filled up so that few shapes stand for all of them: what a backend that keeps steps
// wants (Backend::Repeat). Pure.
//
// Kernels are launched over tokens and sequences; which tokens belong to which sequence and how
// long its context is they read from the batch. So a shape fixes those two numbers, and chunks of
// any lengths, among decodes or alone, are the same step if they are as many tokens in all.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/llama/step_batch.h"

namespace lockstep {

struct PaddedShape {
  int64_t num_tokens = 0;
  int64_t num_seqs = 0;       // at most BatchLimits::max_num_seqs + 1
  bool has_chunks = false;    // else as many sequences as tokens
  bool wants_logits = false;  // of all tokens, or of none

  uint64_t Key() const;  // another for every shape
};

// Batches with chunks are padded up to so many tokens: reading the weights takes most of their time
// still, so that tokens added cost little, and so do launches against longer steps.
constexpr int64_t kMaxPaddedChunkTokens = 128;
constexpr int64_t kMinPaddedChunkTokens = 8;  // and to so many

// The shape of a batch that is decodes only, or has no more than kMaxPaddedChunkTokens; nothing for
// others. Decodes go by eights (1, 2 and 4 below), from 64 on by sixteens. With chunks, tokens go
// by powers of two and sequences by powers of four, and there is one more sequence: that of the
// tokens added. Within the limits.
std::optional<PaddedShape> PaddedShapeFor(const StepBatch& batch, const BatchLimits& limits);

// All shapes of batches within the limits whose logits are wanted or not, the largest first.
std::vector<PaddedShape> AllPaddedShapes(const BatchLimits& limits, bool wants_logits);

// batch, in that shape, but for its new blocks. Tokens added have id and position 0, no source and
// slot -1; sequences added have no context and somebody's block table, which nobody reads. Logits
// added are those of row 0.
void Pad(const StepBatch& batch, const PaddedShape& shape, StepBatch& padded);

}  // namespace lockstep
