#include "model/model_config.h"

#include <variant>

#include "absl/strings/str_format.h"
#include "model/stable_hash.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

std::string_view TorchDTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kF16:
      return "float16";
    case DType::kBF16:
      return "bfloat16";
    case DType::kE4M3:
      return "float8_e4m3fn";
  }
  return "?";
}

nlohmann::ordered_json ScalingJson(const LinearRopeScaling& scaling) {
  return {{"rope_type", "linear"}, {"factor", scaling.factor}};
}

nlohmann::ordered_json ScalingJson(const Llama3RopeScaling& scaling) {
  return {
      {"rope_type", "llama3"},
      {"factor", scaling.factor},
      {"low_freq_factor", scaling.low_freq_factor},
      {"high_freq_factor", scaling.high_freq_factor},
      {"original_max_position_embeddings", scaling.original_max_position_embeddings},
  };
}

nlohmann::ordered_json ScalingJson(const YarnRopeScaling& scaling) {
  return {
      {"rope_type", "yarn"},
      {"factor", scaling.factor},
      {"beta_fast", scaling.beta_fast},
      {"beta_slow", scaling.beta_slow},
      {"attention_factor", scaling.attention_factor},
      {"original_max_position_embeddings", scaling.original_max_position_embeddings},
      {"truncate", scaling.truncate},
  };
}

// Of those in our format, what a layout reads as numbers (StoredQuantization::native); for people.
std::string MatricesCutWithinGroups(const ModelConfig& config, int tp) {
  struct CutMatrix {
    const char* name;
    int64_t columns;
    int num_k_slices;
  };
  const CutMatrix matrices[] = {
      {"o_proj", config.num_heads * config.head_dim, NumKSlices(config.num_heads, tp)},
      {"down_proj", config.intermediate_size, NumKSlices(config.intermediate_size, tp)}};
  std::string text;
  for (const CutMatrix& matrix : matrices) {
    const auto native = config.stored->native(matrix.columns, matrix.num_k_slices);
    if (native != Quantization::kNone) continue;
    absl::StrAppendFormat(&text, "%s%s (%d parts of %d columns are not whole groups)",
                          text.empty() ? "" : " and ", matrix.name, matrix.num_k_slices,
                          matrix.columns / matrix.num_k_slices);
  }
  return text;
}

}  // namespace

ShardedSizes ModelConfig::sharded_sizes() const {
  ShardedSizes sizes;
  sizes.num_layers = num_layers;
  sizes.num_heads = num_heads;
  sizes.num_kv_heads = num_kv_heads;
  sizes.intermediate_size = intermediate_size;
  sizes.vocab_size = vocab_size;
  sizes.hidden_size = hidden_size;
  return sizes;
}

absl::StatusOr<Quantization> ModelConfig::HeldAs(Quantization quantize) const {
  const Quantization native = stored.has_value() ? stored->native() : Quantization::kNone;
  if (native == Quantization::kNone || quantize == native) return quantize;
  if (quantize == Quantization::kNone) return native;
  return absl::InvalidArgumentError(absl::StrFormat(
      "the checkpoint's matrices are quantized to %s already and cannot become %s",
      std::string(QuantizationName(native)), std::string(QuantizationName(quantize))));
}

std::string ModelConfig::LoadingText(Quantization quantize, int tp) const {
  if (!stored.has_value()) return "";
  std::string text = stored->name;
  if (stored->native() != Quantization::kNone) {
    text += ": taken as it is";
    const std::string as_numbers = MatricesCutWithinGroups(*this, tp);
    if (as_numbers.empty()) return text;
    text += ", but for " + as_numbers + ", turned into numbers";
    return quantize == Quantization::kNone ? text : text + " and quantized again";
  }
  if (stored->is_float8()) {
    text += ": taken as it is by GPUs that multiply in fp8, turned into numbers for others";
    if (quantize == Quantization::kFp8) return text + "; other matrices quantized to fp8";
  } else {
    text += ": turned into numbers while loading";
  }
  if (quantize == Quantization::kNone) return text;
  return text + ", then quantized to " + std::string(QuantizationName(quantize));
}

int64_t ModelConfig::num_parameters() const {
  const int64_t attention = 2 * (num_heads + num_kv_heads) * head_dim * hidden_size;
  const int64_t mlp = 3 * hidden_size * intermediate_size;
  const int64_t vectors = num_vector_elements(num_heads, num_kv_heads);
  const int64_t embeddings = (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size;
  return num_layers * (attention + mlp + vectors) + embeddings + hidden_size;
}

int64_t ModelConfig::num_vector_elements(int64_t query_heads, int64_t kv_heads) const {
  return 2 * hidden_size + (has_qkv_bias() ? (query_heads + 2 * kv_heads) * head_dim : 0) +
         (has_head_norms() ? 2 * head_dim : 0);
}

std::string ModelConfig::Fingerprint(Quantization quantize) const {
  const std::string suffix =
      quantize == Quantization::kNone ? "" : "-" + std::string(QuantizationName(quantize));
  return absl::StrFormat("%s-L%d-h%d-i%d-a%d-k%d-d%d-v%d-%s-%016x%s", TraitsOf(family).model_type,
                         num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads,
                         head_dim, vocab_size, std::string(DTypeName(dtype)),
                         Fnv1a64(ModelConfigJson(*this)), suffix);
}

std::string ModelConfigJson(const ModelConfig& config) {
  const FamilyTraits& traits = TraitsOf(config.family);
  nlohmann::ordered_json out = {
      {"architectures", {traits.architecture}},
      {"model_type", traits.model_type},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_layers},
      {"num_attention_heads", config.num_heads},
      {"num_key_value_heads", config.num_kv_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", nullptr},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"torch_dtype", TorchDTypeName(config.dtype)},
  };
  if (config.rope_scaling.has_value()) {
    out["rope_scaling"] =
        std::visit([](const auto& scaling) { return ScalingJson(scaling); }, *config.rope_scaling);
  }
  if (traits.sliding_window > 0) {
    out["sliding_window"] = nullptr;
    if (config.sliding_window.has_value()) out["sliding_window"] = *config.sliding_window;
    if (traits.chooses_windows) {
      out["use_sliding_window"] = config.sliding_window.has_value();
      out["max_window_layers"] = 0;
    }
  }
  if (config.stored.has_value()) {
    out["quantization_config"] = nlohmann::ordered_json::parse(config.stored->json);
  }
  if (config.bos_token_id.has_value()) out["bos_token_id"] = *config.bos_token_id;
  if (!config.eos_token_ids.empty()) out["eos_token_id"] = config.eos_token_ids;
  return out.dump(1) + "\n";
}

}  // namespace lockstep
