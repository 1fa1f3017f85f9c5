// How a checkpoint's matrices are quantized in its files (config.json, quantization_config), where
// they are. Pure; any thread.
//
// Read: compressed-tensors' "pack-quantized" (symmetric 4- and 8-bit groups, as `lockstep model
// quantize` writes it, too) and "float-quantized" (FP8), fbgemm_fp8, "fp8" (transformers', as Qwen3
// and Mistral come), FP8 of NVIDIA's ModelOpt, GPTQ and AWQ. What they say of activations and of
// the KV cache is not followed, ours being kept as Backend::Linear says, but for fbgemm_fp8's
// bound; transforms of activations are refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/quantization.h"
#include "model/spared_matrices.h"
#include "nlohmann/json_fwd.hpp"

namespace lockstep {

struct StoredQuantization {
  // kFloat8: a scale per row, or one for the matrix; kFloat8Blocks: one per block of it.
  enum class Method : uint8_t { kPacked, kFloat8, kFloat8Blocks, kGptq, kAwq };
  Method method = Method::kPacked;
  int bits = 8;
  int64_t group_size = 0;  // along in_features; 0: a scale for the whole row
  int64_t block_rows = 0;  // of kFloat8Blocks, whose columns are group_size
  int zero_offset = 0;     // GPTQ's first format takes 1 from each of a word's zero points
  SparedMatrices spared;   // which of the layers' are not quantized
  // fbgemm_fp8's activation_scale_ub (LinearShape), of products by the matrices that are in FP8.
  float activation_bound = kNoActivationBound;
  std::string json;  // as config.json has it
  std::string name;  // for messages: "compressed-tensors pack-quantized, int4 in groups of 32"

  // In FP8 as GPUs multiply it, a scale to each output.
  bool is_float8() const { return method == Method::kFloat8; }
  // Ours, if the weights are in its format and can be taken as they are.
  Quantization native() const {
    if (method != Method::kPacked) return Quantization::kNone;
    for (const Quantization q : {Quantization::kInt8, Quantization::kInt4}) {
      if (bits == QuantizedBits(q) && group_size == QuantizedGroup(q)) return q;
    }
    return Quantization::kNone;
  }
  // The same of a matrix that products cut into so many K-slices along its columns. Stored groups
  // are counted from its first column, ours from the beginning of each K-slice
  // (kernels/quantization.h): where slices end within groups, it is none of ours.
  Quantization native(int64_t columns, int64_t num_k_slices) const {
    const Quantization whole = native();
    if (whole == Quantization::kNone || num_k_slices == 1) return whole;  // others need no groups
    const bool is_whole_groups = columns / num_k_slices % group_size == 0;
    return is_whole_groups ? whole : Quantization::kNone;
  }
};

// Of a model of so many layers. INVALID_ARGUMENT naming the field, its value and what is supported.
absl::StatusOr<StoredQuantization> ParseStoredQuantization(const nlohmann::json& config,
                                                           int64_t num_layers);

// quantization_config of a checkpoint in our format: compressed-tensors' "pack-quantized".
nlohmann::ordered_json PackedQuantizationJson(Quantization quantization);

}  // namespace lockstep
