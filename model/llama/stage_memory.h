// What a stage takes of its device's memory beside weights and KV cache, as LlamaStage allocates
// it, for those who must know before there is a device. Pure; any thread.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "model/llama/stage_shape.h"
#include "model/llama/step_batch.h"

namespace lockstep {

// Rows of logits that come to the host at once.
inline constexpr int64_t kMaxHostLogitsRows = 64;
// Those that lie on the device at once: more where it summarizes them (Backend::SummarizesLogits),
// for fewer readings of the LM head.
int64_t MaxLogitsRows(const BatchLimits& limits, bool summarizes_logits);

struct StageBuffers {
  const StageShape& shape;
  int tp = 1;
  BatchLimits limits;
  DType input = DType::kBF16;  // Backend::LinearInput
  bool summarizes_logits = true;
  // Backend::ReserveAttentionWork: some 100 KB, unless --deterministic.
  int64_t attention_work_bytes = 0;
  int64_t product_bytes = 0;  // Backend::ProductBytes
};
int64_t BytesOf(const StageBuffers& buffers);

}  // namespace lockstep
