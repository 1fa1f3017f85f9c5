// What flows through a stage, in buffers allocated once for the largest batch. Row-major, dense;
// f32, or Backend::LinearInput() where said.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/llama/stage_shape.h"
#include "model/llama/weights.h"

namespace lockstep {

// Backend::ProductBytes of the layers' products, in steps of up to so many tokens.
int64_t ProductBytes(const Backend& backend, const StageWeights& weights,
                     int64_t max_batched_tokens);

// What they are allocated for.
struct ActivationSizes {
  const StageShape& shape;
  int tp = 1;
  int64_t max_batched_tokens = 0;
  int64_t max_logits_rows = 0;  // of the last stage
  DType input = DType::kF32;    // Backend::LinearInput
  int64_t product_bytes = 0;    // as ProductBytes says
};

struct Activations {
  // [max_batched_tokens, hidden], the stream that layers add to, and room to gather it in slices
  // (parallel/hand_over.h).
  DeviceBuffer residual;
  // [TokenRoom(max_batched_tokens), hidden]: what the last block computed and the next norm adds
  // (parallel/token_split.h); of RowParallelLinear::OutputDType, in room for f32.
  DeviceBuffer delta;
  DeviceBuffer normed;    // likewise, LinearInput
  DeviceBuffer qkv;       // [max_batched_tokens, qkv_width], Backend::ProductDType in room for f32
  DeviceBuffer attended;  // [max_batched_tokens, q_width], LinearInput
  DeviceBuffer gate_up;   // [max_batched_tokens, 2 * intermediate], likewise
  DeviceBuffer gated;     // [max_batched_tokens, intermediate], LinearInput
  DeviceBuffer logits;    // last stage: [max_logits_rows, vocab]
  int64_t product_bytes = 0;  // that the backend holds (Backend::ReserveForProducts)

  // RESOURCE_EXHAUSTED when memory is short, with the number of tokens that there is room for. A
  // stage allocates them last, so that a shortage shows here.
  static absl::StatusOr<Activations> Allocate(Backend& backend, const ActivationSizes& sizes);
  // That it takes.
  static int64_t BytesFor(const ActivationSizes& sizes);
  // Of all but the logits.
  int64_t batched_bytes() const;
};

}  // namespace lockstep
