#include "model/llama/activations.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "parallel/hand_over.h"

namespace lockstep {
namespace {

struct Rows {
  DeviceBuffer Activations::*buffer;
  DType dtype;
  int64_t num_rows;
  int64_t width;
};

std::array<Rows, 8> AllRows(const ActivationSizes& sizes) {
  const StageShape& shape = sizes.shape;
  const int64_t tokens = sizes.max_batched_tokens;
  const int64_t room = TokenRoom(tokens, sizes.tp);
  const int64_t logits_rows = shape.is_last ? sizes.max_logits_rows : 0;
  return {{
      {&Activations::residual, DType::kF32, 1, HandOverFloats(tokens, shape.hidden, sizes.tp)},
      {&Activations::delta, DType::kF32, room, shape.hidden},
      {&Activations::normed, sizes.input, room, shape.hidden},
      {&Activations::qkv, DType::kF32, tokens, shape.qkv_width()},
      {&Activations::attended, sizes.input, tokens, shape.q_width()},
      {&Activations::gate_up, DType::kF32, tokens, 2 * shape.intermediate.size()},
      {&Activations::gated, sizes.input, tokens, shape.intermediate.size()},
      {&Activations::logits, DType::kF32, logits_rows, shape.vocab.size()},
  }};
}

absl::Status AllocateRows(Backend& backend, const Rows& rows, Activations& act) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows.num_rows * DTypeBytes(rows.dtype), rows.width, &bytes)) {
    return absl::ResourceExhaustedError("activation buffers exceed the address space");
  }
  ASSIGN_OR_RETURN(act.*rows.buffer, backend.Allocate(bytes));
  return absl::OkStatus();
}

double GiB(double bytes) { return bytes / 0x1p30; }

// Buffers grow with the tokens, but for the logits and a rounding.
absl::Status TooManyTokens(const absl::Status& error, const ActivationSizes& sizes,
                           int64_t available_bytes) {
  const int64_t max_batched_tokens = sizes.max_batched_tokens;
  auto batched = static_cast<double>(sizes.product_bytes);
  double logits = 0;
  for (const Rows& rows : AllRows(sizes)) {
    const double bytes = static_cast<double>(rows.num_rows * DTypeBytes(rows.dtype)) *
                         static_cast<double>(rows.width);
    (rows.buffer == &Activations::logits ? logits : batched) += bytes;
  }
  const double part = (static_cast<double>(available_bytes) - logits) / batched;
  const auto fitting = static_cast<int64_t>(0.99 * part * static_cast<double>(max_batched_tokens));
  return absl::ResourceExhaustedError(absl::StrCat(
      absl::StrFormat("activations of max_batched_tokens %d take %.2f GiB, %.2f GiB are available "
                      "beside the weights (%s): ",
                      max_batched_tokens, GiB(batched + logits),
                      GiB(static_cast<double>(available_bytes)), error.message()),
      fitting >= 1 && fitting < max_batched_tokens
          ? absl::StrCat("lower max_batched_tokens to ", fitting)
          : "use more ranks"));
}

}  // namespace

// Attention has no consumer; what the other matrices multiply is written for them.
int64_t ProductBytes(const Backend& backend, const StageWeights& weights,
                     int64_t max_batched_tokens) {
  ProductInputs inputs = {.num_rows = max_batched_tokens};
  const auto count = [](const auto& linear, int64_t& widest) {
    const LinearShape& shape = linear.weight()->shape();
    if (shape.quantization == Quantization::kNone) return;
    widest = std::max(widest, shape.in_features);
  };
  for (const LayerWeights& layer : weights.layers) {
    count(layer.qkv, inputs.consumer_width);
    count(layer.attention_output, inputs.width);
    count(layer.gate_up, inputs.consumer_width);
    count(layer.down, inputs.consumer_width);
  }
  return backend.ProductBytes(inputs);
}

absl::StatusOr<Activations> Activations::Allocate(Backend& backend, const ActivationSizes& sizes) {
  Activations act;
  absl::Status status;
  for (const Rows& rows : AllRows(sizes)) {
    if (status.ok()) status = AllocateRows(backend, rows, act);
  }
  // Last, as it is not given back.
  if (status.ok()) status = backend.ReserveForProducts(sizes.product_bytes);
  if (absl::IsResourceExhausted(status)) {
    act = {};  // what there is is available again
    return TooManyTokens(status, sizes, backend.AvailableBytes());
  }
  RETURN_IF_ERROR(status);
  act.product_bytes = sizes.product_bytes;
  return act;
}

int64_t Activations::BytesFor(const ActivationSizes& sizes) {
  int64_t bytes = sizes.product_bytes;
  for (const Rows& rows : AllRows(sizes)) {
    bytes += rows.num_rows * DTypeBytes(rows.dtype) * rows.width;
  }
  return bytes;
}

int64_t Activations::batched_bytes() const {
  return residual.bytes() + delta.bytes() + normed.bytes() + qkv.bytes() + attended.bytes() +
         gate_up.bytes() + gated.bytes() + product_bytes;
}

}  // namespace lockstep
