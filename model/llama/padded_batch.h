// Steps of decodes, filled up so that few shapes stand for all of them: what a backend that keeps
// steps wants (Backend::Repeat). Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "model/llama/step_batch.h"

namespace lockstep {

struct PaddedShape {
  int64_t num_tokens = 0;          // as many sequences
  int64_t max_blocks_per_seq = 0;  // block tables' width
  int64_t max_context_len = 0;
  bool wants_logits = false;  // of all tokens, or of none

  uint64_t Key() const;  // another for every shape
};

// The shape of a batch in which every sequence has one token and all logits are wanted or none;
// nothing for others. Tokens go by eights (1, 2 and 4 below), contexts by quarters of a doubling:
// the work added stays small. Within the limits.
std::optional<PaddedShape> PaddedShapeFor(const StepBatch& batch, const BatchLimits& limits);

// batch, in that shape. Tokens added have id and position 0, slot -1 and no context.
void Pad(const StepBatch& batch, const PaddedShape& shape, StepBatch& padded);

}  // namespace lockstep
