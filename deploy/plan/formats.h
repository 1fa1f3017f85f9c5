// The number formats in which weights and KV cache are held, with the bytes of their scales. Pure;
// any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep::plan {

// What a matrix multiplication takes, activations and weights: hardware has a rate for each, or
// none.
enum class Operands { k32Bits, k16Bits, kFp8, kInt8, kFp4 };

// Embedding, LM head, norms and the experts' router stay in base_bytes.
struct WeightFormat {
  std::string name;
  double linear_bytes = 2.0;  // per weight of a linear layer, scales included
  double base_bytes = 2.0;    // per weight of everything else
  Operands operands = Operands::k16Bits;
  // Attention stays in 16 bits (Meta's own FP8 checkpoint of the 405B, which keeps the MLPs of the
  // first and last layer, too).
  bool only_mlp = false;
};

// f32, bf16 (also f16, float16), fp8, fp8-mlp, int8, int4, nvfp4. NOT_FOUND with the nearest name.
absl::StatusOr<WeightFormat> FindWeightFormat(const std::string& name);

struct KvFormat {
  std::string name;
  double element_bytes = 2.0;
  // Of every head_dim elements (one token's key or value of one head): scales and zero points.
  int64_t scale_group = 0;                 // elements that share them; 0: none
  double scale_bytes = 0.0;                // per group
  double BytesOf(int64_t elements) const;  // of one token's key or value of one head
};

// f32, bf16, fp8, int8, int4, int2. NOT_FOUND with the nearest name.
absl::StatusOr<KvFormat> FindKvFormat(const std::string& name);

}  // namespace lockstep::plan
