// config.json and generation_config.json -> ModelConfig. Field names and defaults: the
// configuration classes of model/model_family.h and GenerationConfig of Hugging Face transformers
// (configuration_utils.py), with the spelling of version 5 (rope_parameters, dtype).
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/config_fields.h"
#include "model/json/strict_json.h"
#include "model/model_config.h"
#include "model/model_family.h"
#include "model/rope_parser.h"
#include "model/size_limits.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Fields = ConfigFields;

// The names of one kind of all families, quoted: for errors.
std::string Supported(const char* FamilyTraits::*name, const char* open, const char* close) {
  return absl::StrJoin(kModelFamilies, ", ", [&](std::string* out, const FamilyTraits& traits) {
    absl::StrAppend(out, open, traits.*name, close);
  });
}

absl::StatusOr<ModelFamily> ParseFamily(const Fields& fields) {
  const json* type = fields.Get("model_type");
  const json* architectures = fields.Get("architectures");
  if (type == nullptr && architectures == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model_type is missing; supported: ", Supported(&FamilyTraits::model_type, "\"", "\"")));
  }
  for (const FamilyTraits& traits : kModelFamilies) {
    const json architecture = json::array({traits.architecture});
    if (type == nullptr && *architectures == architecture) return traits.family;
    if (type == nullptr || *type != traits.model_type) continue;
    if (architectures == nullptr || *architectures == architecture) return traits.family;
    return FieldError("architectures", *architectures,
                      absl::StrCat(architecture.dump(), " with model_type ", type->dump()));
  }
  if (type != nullptr) {
    return FieldError("model_type", *type, Supported(&FamilyTraits::model_type, "\"", "\""));
  }
  return FieldError("architectures", *architectures,
                    Supported(&FamilyTraits::architecture, "[\"", "\"]"));
}

absl::Status ParseQuantization(const Fields& fields, ModelConfig& config) {
  for (const char* name : {"quantization_config", "compression_config"}) {
    const json* value = fields.Get(name);
    if (value == nullptr) continue;
    ASSIGN_OR_RETURN(config.stored, ParseStoredQuantization(*value, config.num_layers));
  }
  return absl::OkStatus();
}

// What changes the arithmetic in ways that the forward pass does not have.
absl::Status CheckVariant(const Fields& fields, const FamilyTraits& traits) {
  if (const json* act = fields.Get("hidden_act"); act != nullptr && *act != "silu") {
    return FieldError("hidden_act", *act, "\"silu\"");
  }
  // Qwen2 has its bias whatever the file says.
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    if (traits.has_qkv_bias && name == std::string_view("attention_bias")) continue;
    if (const json* value = fields.Get(name); value != nullptr && *value != json(false)) {
      return FieldError(name, *value, "false");
    }
  }
  for (const char* name : {"num_local_experts", "num_experts"}) {
    if (const json* value = fields.Get(name); value != nullptr) {
      return FieldError(name, *value, "null (dense models)");
    }
  }
  if (const json* value = fields.Get("partial_rotary_factor");
      value != nullptr && *value != json(1.0)) {
    return FieldError("partial_rotary_factor", *value, "1.0");
  }
  return absl::OkStatus();
}

absl::Status CheckLayerTypes(const Fields& fields, bool has_window) {
  const json* types = fields.Get("layer_types");
  if (types == nullptr) return absl::OkStatus();
  if (!types->is_array()) return FieldError("layer_types", *types, "null or a list");
  for (const json& type : *types) {
    if (type == "full_attention" || (has_window && type == "sliding_attention")) continue;
    return FieldError(
        "layer_types", type,
        has_window ? "\"full_attention\", \"sliding_attention\"" : "\"full_attention\"");
  }
  return absl::OkStatus();
}

// Of a family that chooses windows: whether a layer has one.
absl::StatusOr<bool> AnyLayerSlides(const Fields& fields, int64_t num_layers) {
  ASSIGN_OR_RETURN(const auto used, fields.OptionalBool("use_sliding_window"));
  ASSIGN_OR_RETURN(const auto first, fields.OptionalInt("max_window_layers", 0, kMaxLayers));
  RETURN_IF_ERROR(CheckLayerTypes(fields, used.value_or(false)));
  if (!used.value_or(false)) return false;
  const json* types = fields.Get("layer_types");
  if (types == nullptr) return num_layers > first.value_or(kFirstWindowLayer);
  return std::find(types->begin(), types->end(), "sliding_attention") != types->end();
}

// How many tokens back the layers see that do not see all; nothing where all of them do.
absl::StatusOr<std::optional<int64_t>> ParseWindow(const Fields& fields, const FamilyTraits& traits,
                                                   int64_t num_layers) {
  ASSIGN_OR_RETURN(auto window, fields.OptionalInt("sliding_window", 1, kMaxPositions));
  if (window.has_value() && traits.sliding_window == 0) {
    return FieldError("sliding_window", *fields.Get("sliding_window"),
                      absl::StrCat("null for model_type \"", traits.model_type, "\""));
  }
  if (!fields.Has("sliding_window") && traits.sliding_window > 0) window = traits.sliding_window;
  if (traits.chooses_windows) {
    ASSIGN_OR_RETURN(const bool slides, AnyLayerSlides(fields, num_layers));
    return slides ? window : std::nullopt;
  }
  RETURN_IF_ERROR(CheckLayerTypes(fields, window.has_value()));
  return window;
}

// Within the window, attention is attention to all: contexts are kept to it.
absl::Status LimitToWindow(const Fields& fields, const FamilyTraits& traits, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto window, ParseWindow(fields, traits, config.num_layers));
  if (!window.has_value() || *window > config.max_position_embeddings) return absl::OkStatus();
  config.sliding_window = window;
  config.max_position_embeddings = *window;
  return absl::OkStatus();
}

absl::Status ParseSizes(const Fields& fields, const FamilyTraits& traits, ModelConfig& config) {
  RETURN_IF_ERROR(fields.RequiredInt("hidden_size", 1, kMaxHiddenSize, config.hidden_size));
  RETURN_IF_ERROR(
      fields.RequiredInt("intermediate_size", 1, kMaxIntermediateSize, config.intermediate_size));
  RETURN_IF_ERROR(fields.RequiredInt("num_hidden_layers", 1, kMaxLayers, config.num_layers));
  RETURN_IF_ERROR(fields.RequiredInt("num_attention_heads", 1, kMaxHeads, config.num_heads));
  RETURN_IF_ERROR(fields.RequiredInt("vocab_size", 1, kMaxVocabSize, config.vocab_size));
  ASSIGN_OR_RETURN(const auto num_kv_heads,
                   fields.OptionalInt("num_key_value_heads", 1, kMaxHeads));
  const bool is_told = fields.Has("num_key_value_heads") || traits.num_kv_heads == 0;
  config.num_kv_heads = num_kv_heads.value_or(is_told ? config.num_heads : traits.num_kv_heads);
  ASSIGN_OR_RETURN(const auto positions,
                   fields.OptionalInt("max_position_embeddings", 1, kMaxPositions));
  config.max_position_embeddings = positions.value_or(traits.max_position_embeddings);
  if (config.num_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_attention_heads = ", config.num_heads,
                     " is not a multiple of num_key_value_heads = ", config.num_kv_heads));
  }
  return absl::OkStatus();
}

absl::Status ParseHeadDim(const Fields& fields, const FamilyTraits& traits, ModelConfig& config) {
  ASSIGN_OR_RETURN(auto given, fields.OptionalInt("head_dim", 2, kMaxHeadDim));
  if (!fields.Has("head_dim") && traits.head_dim > 0) given = traits.head_dim;
  if (!given.has_value() && config.hidden_size % config.num_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("hidden_size = ", config.hidden_size,
                                                   " is not a multiple of num_attention_heads = ",
                                                   config.num_heads, " and head_dim is not given"));
  }
  config.head_dim = given.value_or(config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim = ", config.head_dim,
                     " is not supported; supported: even numbers up to ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

absl::Status ParseDType(const Fields& fields, ModelConfig& config) {
  const json* value = fields.Get("dtype");
  if (value == nullptr) value = fields.Get("torch_dtype");
  if (value == nullptr || *value == "float32") {
    config.dtype = DType::kF32;  // transformers' default
  } else if (*value == "float16") {
    config.dtype = DType::kF16;
  } else if (*value == "bfloat16") {
    config.dtype = DType::kBF16;
  } else {
    return FieldError(fields.Get("dtype") != nullptr ? "dtype" : "torch_dtype", *value,
                      "\"float32\", \"float16\", \"bfloat16\"");
  }
  return absl::OkStatus();
}

absl::Status ParseScalars(const Fields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto eps, fields.OptionalNumber("rms_norm_eps", 1e-30, 1.0));
  config.rms_norm_eps = eps.value_or(1e-6);  // transformers' default
  ASSIGN_OR_RETURN(const auto tied, fields.OptionalBool("tie_word_embeddings"));
  config.tie_word_embeddings = tied.value_or(false);
  RETURN_IF_ERROR(ParseQuantization(fields, config));
  return ParseDType(fields, config);
}

// eos_token_id: an integer or a list of them. Added to ids in order of appearance, once each.
absl::Status ParseEosIds(const json& object, int64_t vocab_size, std::vector<int32_t>& ids) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return absl::OkStatus();
  const json list = found->is_array() ? *found : json::array({*found});
  constexpr size_t kMaxEosIds = 64;
  if (list.size() > kMaxEosIds) {
    return FieldError("eos_token_id", *found, absl::StrCat("at most ", kMaxEosIds, " ids"));
  }
  for (const json& element : list) {
    const json wrapped = {{"eos_token_id", element}};
    int64_t id = 0;
    RETURN_IF_ERROR(Fields(wrapped, "").RequiredInt("eos_token_id", 0, vocab_size - 1, id));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<json> ParseObject(std::string_view text) {
  ASSIGN_OR_RETURN(json document, ParseStrictJson(text));
  if (!document.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a JSON object, found ", QuotedJson(document)));
  }
  return document;
}

absl::StatusOr<ModelConfig> ParseModelConfigObject(const json& document) {
  const Fields fields(document, "");
  ModelConfig config;
  ASSIGN_OR_RETURN(config.family, ParseFamily(fields));
  const FamilyTraits& traits = TraitsOf(config.family);
  RETURN_IF_ERROR(CheckVariant(fields, traits));
  RETURN_IF_ERROR(ParseSizes(fields, traits, config));
  RETURN_IF_ERROR(ParseHeadDim(fields, traits, config));
  RETURN_IF_ERROR(ParseRope(fields, config));
  RETURN_IF_ERROR(LimitToWindow(fields, traits, config));
  RETURN_IF_ERROR(ParseScalars(fields, config));
  ASSIGN_OR_RETURN(const auto bos, fields.OptionalInt("bos_token_id", 0, config.vocab_size - 1));
  if (bos.has_value()) config.bos_token_id = static_cast<int32_t>(*bos);
  RETURN_IF_ERROR(ParseEosIds(document, config.vocab_size, config.eos_token_ids));
  return config;
}

absl::StatusOr<GenerationDefaults> ParseGenerationObject(const json& document,
                                                         ModelConfig& config) {
  const Fields fields(document, "");
  GenerationDefaults defaults;
  ASSIGN_OR_RETURN(defaults.do_sample, fields.OptionalBool("do_sample"));
  ASSIGN_OR_RETURN(const auto temperature, fields.OptionalNumber("temperature", 0.0, 100.0));
  ASSIGN_OR_RETURN(const auto top_p, fields.OptionalNumber("top_p", 0.0, 1.0));
  ASSIGN_OR_RETURN(const auto top_k,
                   fields.OptionalInt("top_k", -1, std::numeric_limits<int32_t>::max()));
  ASSIGN_OR_RETURN(const auto min_p, fields.OptionalNumber("min_p", 0.0, 1.0));
  ASSIGN_OR_RETURN(const auto penalty, fields.OptionalNumber("repetition_penalty", 1e-6, 10.0));
  if (temperature.has_value()) defaults.temperature = static_cast<float>(*temperature);
  if (top_p.has_value()) defaults.top_p = static_cast<float>(*top_p);
  if (top_k.has_value()) defaults.top_k = std::max(0, static_cast<int32_t>(*top_k));  // -1: off
  if (min_p.has_value()) defaults.min_p = static_cast<float>(*min_p);
  if (penalty.has_value()) defaults.repetition_penalty = static_cast<float>(*penalty);
  RETURN_IF_ERROR(ParseEosIds(document, config.vocab_size, config.eos_token_ids));
  return defaults;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view config_json) {
  absl::StatusOr<json> document = ParseObject(config_json);
  if (!document.ok()) return InFile("config.json", document.status());
  absl::StatusOr<ModelConfig> config = ParseModelConfigObject(*document);
  if (!config.ok()) return InFile("config.json", config.status());
  return config;
}

absl::StatusOr<GenerationDefaults> ParseGenerationConfig(std::string_view text,
                                                         ModelConfig& config) {
  absl::StatusOr<json> document = ParseObject(text);
  if (!document.ok()) return InFile("generation_config.json", document.status());
  absl::StatusOr<GenerationDefaults> defaults = ParseGenerationObject(*document, config);
  if (!defaults.ok()) return InFile("generation_config.json", defaults.status());
  return defaults;
}

}  // namespace lockstep
