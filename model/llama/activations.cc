#include "model/llama/activations.h"

#include "kernels/base/status_macros.h"
#include "parallel/hand_over.h"

namespace lockstep {
namespace {

absl::Status AllocateRows(Backend& backend, DType dtype, int64_t rows, int64_t width,
                          DeviceBuffer& buffer) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows * DTypeBytes(dtype), width, &bytes)) {
    return absl::ResourceExhaustedError("activation buffers exceed the address space");
  }
  ASSIGN_OR_RETURN(buffer, backend.Allocate(bytes));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Activations> Activations::Allocate(Backend& backend, const StageShape& shape, int tp,
                                                  int64_t max_batched_tokens,
                                                  int64_t max_logits_rows) {
  Activations act;
  const int64_t tokens = max_batched_tokens;
  const DType input = backend.LinearInput();
  const int64_t room = TokenRoom(tokens, tp);
  RETURN_IF_ERROR(AllocateRows(backend, DType::kF32, 1, HandOverFloats(tokens, shape.hidden, tp),
                               act.residual));
  RETURN_IF_ERROR(AllocateRows(backend, DType::kF32, room, shape.hidden, act.delta));
  RETURN_IF_ERROR(AllocateRows(backend, input, room, shape.hidden, act.normed));
  RETURN_IF_ERROR(AllocateRows(backend, DType::kF32, tokens, shape.qkv_width(), act.qkv));
  RETURN_IF_ERROR(AllocateRows(backend, input, tokens, shape.q_width(), act.attended));
  RETURN_IF_ERROR(
      AllocateRows(backend, DType::kF32, tokens, 2 * shape.intermediate.size(), act.gate_up));
  RETURN_IF_ERROR(AllocateRows(backend, input, tokens, shape.intermediate.size(), act.gated));
  if (shape.is_last) {
    RETURN_IF_ERROR(
        AllocateRows(backend, DType::kF32, max_logits_rows, shape.vocab.size(), act.logits));
  }
  return act;
}

}  // namespace lockstep
