// config.json -> Architecture. Field names and defaults: transformers' configuration files of the
// model types below.
#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "deploy/plan/architecture.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"
#include "model/json_integer.h"
#include "model/model_family.h"
#include "model/size_limits.h"
#include "model/stored_quantization.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;

constexpr int64_t kMaxExperts = int64_t{1} << 10;
constexpr int64_t kMaxParameters = int64_t{1} << 50;

constexpr std::array<const char*, 10> kModelTypes = {
    "llama",     "mistral",    "mixtral",     "qwen2",       "qwen3",
    "qwen3_moe", "minimax_m2", "deepseek_v2", "deepseek_v3", "kimi_k2"};

const json* Find(const json& config, const char* name) {
  const auto found = config.find(name);
  return found == config.end() || found->is_null() ? nullptr : &*found;
}

// Reads the integer `name`, or leaves out as it is when it is absent.
absl::Status ReadInt(const json& config, const char* name, int64_t min, int64_t max, int64_t& out) {
  const json* value = Find(config, name);
  if (value == nullptr) return absl::OkStatus();
  const std::optional<int64_t> integer = IntegerIn(*value, min, max);
  if (!integer.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " = ", QuotedJson(*value),
                                                   " is not an integer in [", min, ", ", max, "]"));
  }
  out = *integer;
  return absl::OkStatus();
}

absl::Status ReadRequired(const json& config, const char* name, int64_t max, int64_t& out) {
  RETURN_IF_ERROR(ReadInt(config, name, 1, max, out));
  if (out > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
}

absl::Status ReadSizes(const json& config, Architecture& model) {
  RETURN_IF_ERROR(ReadRequired(config, "hidden_size", kMaxHiddenSize, model.hidden_size));
  RETURN_IF_ERROR(
      ReadRequired(config, "intermediate_size", kMaxIntermediateSize, model.intermediate_size));
  RETURN_IF_ERROR(ReadRequired(config, "num_hidden_layers", kMaxLayers, model.num_layers));
  RETURN_IF_ERROR(ReadRequired(config, "num_attention_heads", kMaxHeads, model.num_heads));
  const FamilyTraits* family = TraitsOfType(model.model_type);
  model.num_kv_heads = model.num_heads;
  if (family != nullptr && family->num_kv_heads > 0 && !config.contains("num_key_value_heads")) {
    model.num_kv_heads = family->num_kv_heads;
  }
  RETURN_IF_ERROR(ReadInt(config, "num_key_value_heads", 1, kMaxHeads, model.num_kv_heads));
  if (model.num_heads % model.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_key_value_heads ", model.num_kv_heads,
                                                   " does not divide num_attention_heads ",
                                                   model.num_heads));
  }
  model.head_dim = model.hidden_size / model.num_heads;
  if (family != nullptr && family->head_dim > 0 && !config.contains("head_dim")) {
    model.head_dim = family->head_dim;
  }
  RETURN_IF_ERROR(ReadInt(config, "head_dim", 1, kMaxHeadDim, model.head_dim));
  if (model.head_dim < 1 || model.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size ", model.hidden_size,
                                                   " over num_attention_heads ", model.num_heads,
                                                   " gives no head_dim in [1, ", kMaxHeadDim, "]"));
  }
  RETURN_IF_ERROR(ReadRequired(config, "vocab_size", kMaxVocabSize, model.vocab_size));
  RETURN_IF_ERROR(ReadRequired(config, "max_position_embeddings", kMaxPositions,
                               model.max_position_embeddings));
  const json* tied = Find(config, "tie_word_embeddings");
  model.tie_word_embeddings = tied != nullptr && *tied == json(true);
  return absl::OkStatus();
}

absl::Status ReadLatent(const json& config, Architecture& model) {
  if (!model.model_type.starts_with("deepseek") && model.model_type != "kimi_k2") {
    return absl::OkStatus();
  }
  LatentAttention latent;
  RETURN_IF_ERROR(ReadRequired(config, "kv_lora_rank", kMaxHiddenSize, latent.kv_lora_rank));
  RETURN_IF_ERROR(ReadInt(config, "q_lora_rank", 1, kMaxHiddenSize, latent.q_lora_rank));
  RETURN_IF_ERROR(ReadRequired(config, "qk_nope_head_dim", kMaxHeadDim, latent.qk_nope_head_dim));
  RETURN_IF_ERROR(ReadRequired(config, "qk_rope_head_dim", kMaxHeadDim, latent.qk_rope_head_dim));
  RETURN_IF_ERROR(ReadRequired(config, "v_head_dim", kMaxHeadDim, latent.v_head_dim));
  model.latent = latent;
  model.num_kv_heads = model.num_heads;  // every head has its own keys once they are expanded
  return absl::OkStatus();
}

absl::Status ReadExperts(const json& config, Architecture& model) {
  Experts experts;
  for (const char* name : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    RETURN_IF_ERROR(ReadInt(config, name, 1, kMaxExperts, experts.num_experts));
  }
  if (experts.num_experts == 0) return absl::OkStatus();
  RETURN_IF_ERROR(
      ReadRequired(config, "num_experts_per_tok", experts.num_experts, experts.per_token));
  experts.intermediate_size = model.intermediate_size;
  RETURN_IF_ERROR(
      ReadInt(config, "moe_intermediate_size", 1, kMaxIntermediateSize, experts.intermediate_size));
  int64_t num_shared = 0;
  RETURN_IF_ERROR(ReadInt(config, "n_shared_experts", 0, kMaxExperts, num_shared));
  experts.shared_intermediate_size = num_shared * experts.intermediate_size;
  RETURN_IF_ERROR(
      ReadInt(config, "first_k_dense_replace", 0, model.num_layers, experts.first_layer));
  model.experts = experts;
  return absl::OkStatus();
}

absl::Status ReadWindows(const json& config, Architecture& model) {
  model.window_of_layer.assign(static_cast<size_t>(model.num_layers), 0);
  const FamilyTraits* family = TraitsOfType(model.model_type);
  int64_t window =
      family != nullptr && !config.contains("sliding_window") ? family->sliding_window : 0;
  RETURN_IF_ERROR(ReadInt(config, "sliding_window", 1, kMaxPositions, window));
  const json* used = Find(config, "use_sliding_window");
  if (window == 0 || (used != nullptr && *used == json(false))) return absl::OkStatus();
  if (model.model_type == "llama") {
    return absl::InvalidArgumentError("sliding_window is set, which a llama does not have");
  }
  // Some choose: from max_window_layers on. Others: as layer_types says, or all of them.
  int64_t first = 0;
  if (family != nullptr && family->chooses_windows) {
    if (used == nullptr) return absl::OkStatus();
    first = kFirstWindowLayer;
  }
  if (used != nullptr) {
    RETURN_IF_ERROR(ReadInt(config, "max_window_layers", 0, kMaxLayers, first));
  }
  const json* types = Find(config, "layer_types");
  const bool per_layer =
      types != nullptr && types->is_array() && std::ssize(*types) == model.num_layers;
  for (int64_t layer = first; layer < model.num_layers; ++layer) {
    const bool slides = !per_layer || (*types)[layer] == json("sliding_attention");
    if (slides) model.window_of_layer[layer] = window;
  }
  return absl::OkStatus();
}

// Meta's own leaves attention in 16 bits.
const char* Float8Format(const StoredQuantization& stored, int64_t num_layers) {
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    if (!HasAll(stored.spared.Of(layer), kAttentionMatrices)) return "fp8";
  }
  return "fp8-mlp";
}

absl::Status ReadStoredWeights(const json& config, Architecture& model) {
  const json* name = Find(config, "torch_dtype");
  if (name == nullptr) name = Find(config, "dtype");
  if (name != nullptr && *name == json("float32")) model.dtype = DType::kF32;
  if (name != nullptr && *name == json("float16")) model.dtype = DType::kF16;
  const json* quantization = Find(config, "quantization_config");
  if (quantization == nullptr) quantization = Find(config, "compression_config");
  if (quantization == nullptr || !quantization->is_object()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StoredQuantization stored,
                   ParseStoredQuantization(*quantization, model.num_layers));
  const bool in_blocks = stored.method == StoredQuantization::Method::kFloat8Blocks;
  model.stored_weights = stored.is_float8() || in_blocks ? Float8Format(stored, model.num_layers)
                         : stored.bits == 8              ? "int8"
                                                         : "int4";
  return absl::OkStatus();
}

absl::Status ReadModelType(const json& config, Architecture& model) {
  const json* type = Find(config, "model_type");
  if (type == nullptr || !type->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_type is missing; known: ", absl::StrJoin(kModelTypes, ", ")));
  }
  model.model_type = type->get<std::string>();
  if (std::find(kModelTypes.begin(), kModelTypes.end(), model.model_type) == kModelTypes.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_type ", Quoted(model.model_type),
                     " is not known; known: ", absl::StrJoin(kModelTypes, ", ")));
  }
  const FamilyTraits* family = TraitsOfType(model.model_type);
  model.qkv_bias = family != nullptr && family->has_qkv_bias;
  model.qk_norm = family != nullptr
                      ? family->has_head_norms
                      : model.model_type == "qwen3_moe" || model.model_type == "minimax_m2";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Architecture> ParseArchitecture(std::string_view config_json) {
  ASSIGN_OR_RETURN(const json config, ParseStrictJson(config_json));
  if (!config.is_object()) return absl::InvalidArgumentError("config.json is not an object");
  Architecture model;
  RETURN_IF_ERROR(ReadModelType(config, model));
  RETURN_IF_ERROR(ReadSizes(config, model));
  RETURN_IF_ERROR(ReadLatent(config, model));
  RETURN_IF_ERROR(ReadExperts(config, model));
  RETURN_IF_ERROR(ReadWindows(config, model));
  RETURN_IF_ERROR(ReadStoredWeights(config, model));
  // In double: the sum itself could leave int64.
  const double layer = static_cast<double>(model.hidden_size) *
                       (4.0 * static_cast<double>(model.num_heads * model.head_dim) +
                        3.0 * static_cast<double>(model.intermediate_size) +
                        (model.experts ? 3.0 * static_cast<double>(model.experts->num_experts) *
                                             static_cast<double>(model.experts->intermediate_size)
                                       : 0.0));
  if (layer * static_cast<double>(model.num_layers) > static_cast<double>(kMaxParameters)) {
    return absl::InvalidArgumentError("the sizes multiply to more than 2^50 parameters");
  }
  if (auto runtime = ParseModelConfig(config_json); runtime.ok()) {
    model.runtime_config = *std::move(runtime);
    // YaRN makes more positions than such files say.
    model.max_position_embeddings =
        std::max(model.max_position_embeddings, model.runtime_config->max_position_embeddings);
  } else {
    model.runtime_refusal = std::string(runtime.status().message());
  }
  return model;
}

}  // namespace lockstep::plan
