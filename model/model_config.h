// What a checkpoint of a Llama, or of a family that shares its layers, says about itself
// (config.json, generation_config.json), validated.
//
// Covers every dense Llama 2 / 3 / 3.1 / 3.2 / 3.3, and dense Mistral, Qwen2 / 2.5 and Qwen3
// (model/model_family.h): GQA, tied embeddings, rope_theta, rope_scaling "llama3" and "yarn",
// head_dim given or derived. Anything else is refused by name and value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/quantization.h"
#include "model/model_family.h"
#include "model/rope.h"
#include "model/stored_quantization.h"
#include "parallel/partition.h"

namespace lockstep {

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // even
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  // at most sliding_window
  // Of layers that see only so many tokens back, where positions would allow as many or more.
  std::optional<int64_t> sliding_window;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  DType dtype = DType::kBF16;                // as the checkpoint declares it
  std::optional<StoredQuantization> stored;  // of matrices that the checkpoint holds quantized
  std::optional<int32_t> bos_token_id;
  // config.json's and generation_config.json's and, of a Checkpoint, its tokenizer's, merged.
  std::vector<int32_t> eos_token_ids;

  bool has_qkv_bias() const { return TraitsOf(family).has_qkv_bias; }
  bool has_head_norms() const { return TraitsOf(family).has_head_norms; }
  RopeShape rope() const { return {head_dim, rope_theta, rope_scaling}; }
  ShardedSizes sharded_sizes() const;
  // What matrices are kept as when `quantize` is asked for: that, or the checkpoint's own format.
  // INVALID_ARGUMENT when both are and differ.
  absl::StatusOr<Quantization> HeldAs(Quantization quantize) const;
  int64_t num_parameters() const;
  // Of a layer's norms and biases, where it has so many heads.
  int64_t num_vector_elements(int64_t query_heads, int64_t kv_heads) const;
  // What happens to quantized matrices of the checkpoint while they are loaded by ranks of this tp,
  // as one line for a log; empty when there are none.
  std::string LoadingText(Quantization quantize, int tp) const;
  // A one-line identity of architecture, sizes and, when matrices are quantized while they are
  // loaded, of their format: equal on all ranks that loaded the same model alike.
  std::string Fingerprint(Quantization quantize = Quantization::kNone) const;
};

// Sampling defaults of the checkpoint (generation_config.json); empty fields are not set there.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;  // 0: off
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

// How the LM head is kept when matrices are quantized: 8 bits also among 4-bit ones, since its
// errors are the logits' own; among fp8 ones as it is, as in fp8 checkpoints.
constexpr Quantization HeadQuantization(Quantization quantize) {
  return quantize == Quantization::kInt8 || quantize == Quantization::kInt4 ? Quantization::kInt8
                                                                            : Quantization::kNone;
}

// INVALID_ARGUMENT naming the field, its value and what is supported. Every number is
// range-checked.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json);
// Adds generation_config.json's eos ids to config and returns its sampling defaults.
absl::StatusOr<GenerationDefaults> ParseGenerationConfig(std::string_view json,
                                                         ModelConfig& config);
// config.json text that ParseModelConfig reads back to the same values (Hugging Face field names).
std::string ModelConfigJson(const ModelConfig& config);

}  // namespace lockstep
