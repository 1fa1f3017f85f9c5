#include "model/llama/stage_memory.h"

#include <algorithm>

#include "model/llama/activations.h"
#include "model/llama/device_batch.h"
#include "model/llama/rope_tables.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxSummarizedRows = 256;

}  // namespace

int64_t MaxLogitsRows(const BatchLimits& limits, bool summarizes_logits) {
  return std::min(summarizes_logits ? kMaxSummarizedRows : kMaxHostLogitsRows,
                  limits.max_batched_tokens);
}

int64_t BytesOf(const StageBuffers& buffers) {
  const BatchLimits& limits = buffers.limits;
  return DeviceBatch::BytesFor(limits, buffers.attention_work_bytes) +
         Activations::BytesFor({.shape = buffers.shape,
                                .tp = buffers.tp,
                                .max_batched_tokens = limits.max_batched_tokens,
                                .max_logits_rows = MaxLogitsRows(limits, buffers.summarizes_logits),
                                .input = buffers.input,
                                .product_bytes = buffers.product_bytes}) +
         RopeTables::BytesFor(buffers.shape.head_dim, limits.max_model_len);
}

}  // namespace lockstep
