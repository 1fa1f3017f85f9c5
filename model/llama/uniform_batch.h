// A step of equal sequences, for measuring the forward pass.
#pragma once

#include "model/llama/step_batch.h"

namespace lockstep {

struct UniformBatch {
  int64_t num_seqs = 1;
  int64_t context = 1;     // tokens of each sequence once the step is done
  int64_t new_tokens = 1;  // of them, computed by this step
  int block_size = 16;
  int64_t vocab_size = 1;
  bool wants_all_logits = false;  // of all new tokens, else of the last
};

// Each sequence has blocks of its own. 1 <= new_tokens <= context.
StepBatch MakeUniformBatch(const UniformBatch& uniform);

}  // namespace lockstep
