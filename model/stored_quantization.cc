// Field names: QuantizationConfig of the compressed-tensors package (quantization/quant_config.py,
// quant_args.py; transform/transform_config.py); FbgemmFp8Config, FineGrainedFP8Config, GPTQConfig
// and AwqConfig of transformers (utils/quantization_config.py); AutoFP8's of "fp8" without blocks;
// ModelOpt's unified export (modelopt/torch/export: quant_utils.py, convert_hf_config.py).
#include "model/stored_quantization.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"
#include "model/json_integer.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using nlohmann::json;
using Method = StoredQuantization::Method;

absl::Status Unsupported(const std::string& field, const json& value,
                         const std::string& supported) {
  return absl::InvalidArgumentError(absl::StrCat("quantization_config.", field, " = ",
                                                 QuotedJson(value),
                                                 " is not supported; supported: ", supported));
}

// Null when the path leads nowhere.
json At(const json& object, std::initializer_list<const char*> path) {
  const json* value = &object;
  for (const char* name : path) {
    if (!value->is_object()) return nullptr;
    const auto found = value->find(name);
    if (found == value->end()) return nullptr;
    value = &*found;
  }
  return *value;
}

absl::StatusOr<int64_t> IntegerOf(const json& value, const std::string& field, int64_t min,
                                  int64_t max) {
  if (const std::optional<int64_t> integer = IntegerIn(value, min, max)) return *integer;
  return Unsupported(field, value, absl::StrCat("an integer in [", min, ", ", max, "]"));
}

constexpr int64_t kMaxGroup = int64_t{1} << 22;

// -1 is one group for the whole row.
absl::StatusOr<int64_t> GroupSizeOf(const json& value, const std::string& field) {
  ASSIGN_OR_RETURN(const int64_t group, IntegerOf(value, field, -1, kMaxGroup));
  if (group == 0) return Unsupported(field, value, "-1 or a positive integer");
  return group == -1 ? 0 : group;
}

absl::StatusOr<StoredQuantization> ParsePacked(const json& weights, const std::string& prefix) {
  StoredQuantization stored;
  ASSIGN_OR_RETURN(const int64_t bits,
                   IntegerOf(At(weights, {"num_bits"}), prefix + "num_bits", 1, 16));
  if (bits != 4 && bits != 8) return Unsupported(prefix + "num_bits", bits, "4, 8");
  stored.bits = static_cast<int>(bits);
  if (At(weights, {"symmetric"}) != json(true)) {
    return Unsupported(prefix + "symmetric", At(weights, {"symmetric"}), "true");
  }
  const json strategy = At(weights, {"strategy"});
  if (strategy == "group") {
    ASSIGN_OR_RETURN(stored.group_size,
                     GroupSizeOf(At(weights, {"group_size"}), prefix + "group_size"));
  } else if (strategy != "channel") {
    return Unsupported(prefix + "strategy", strategy, "\"group\", \"channel\"");
  }
  const json order = At(weights, {"actorder"});
  if (!order.is_null() && order != "weight" && order != "static" && order != json(false)) {
    return Unsupported(prefix + "actorder", order, "null, \"weight\", \"static\"");
  }
  stored.name =
      absl::StrCat("compressed-tensors pack-quantized, int", bits,
                   stored.group_size == 0 ? " with a scale per row"
                                          : absl::StrCat(" in groups of ", stored.group_size));
  return stored;
}

// [rows, columns] of a block.
absl::StatusOr<StoredQuantization> Float8Blocks(const json& shape, const std::string& field,
                                                const std::string& name) {
  const auto size = [&](size_t i) {
    return shape.is_array() && shape.size() == 2 ? IntegerIn(shape[i], 1, kMaxGroup) : std::nullopt;
  };
  if (!size(0) || !size(1)) {
    return Unsupported(field, shape, absl::StrCat("two integers in [1, ", kMaxGroup, "]"));
  }
  StoredQuantization stored;
  stored.method = Method::kFloat8Blocks;
  stored.block_rows = *size(0);
  stored.group_size = *size(1);
  stored.name =
      absl::StrCat(name, ", FP8 in blocks of ", stored.block_rows, " x ", stored.group_size);
  return stored;
}

absl::StatusOr<StoredQuantization> ParseFloat8(const json& weights, const std::string& prefix) {
  if (At(weights, {"num_bits"}) != json(8)) {
    return Unsupported(prefix + "num_bits", At(weights, {"num_bits"}), "8");
  }
  const json strategy = At(weights, {"strategy"});
  if (strategy == "block") {
    return Float8Blocks(At(weights, {"block_structure"}), prefix + "block_structure",
                        "compressed-tensors float-quantized");
  }
  if (strategy != "channel" && strategy != "tensor") {
    return Unsupported(prefix + "strategy", strategy, "\"channel\", \"tensor\", \"block\"");
  }
  StoredQuantization stored;
  stored.method = Method::kFloat8;
  stored.name = absl::StrCat("compressed-tensors float-quantized, FP8 with a scale per ",
                             strategy == "tensor" ? "matrix" : "row");
  return stored;
}

// Rotations of weights (SpinQuant, QuIP) are in the stored ones already; those of activations, keys
// and queries would have to be computed in every step.
absl::Status CheckTransforms(const json& config) {
  const json groups = At(config, {"transform_config", "config_groups"});
  for (const auto& [name, scheme] : groups.items()) {
    for (const json& where : At(scheme, {"apply"})) {
      const json location = At(where, {"location"});
      if (location == "weight_input" || location == "weight_output") continue;
      return Unsupported(absl::StrCat("transform_config.config_groups.", name, ".apply.location"),
                         location, "\"weight_input\", \"weight_output\"");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredQuantization> ParseCompressedTensors(const json& config) {
  RETURN_IF_ERROR(CheckTransforms(config));
  const json groups = At(config, {"config_groups"});
  if (!groups.is_object() || groups.size() != 1) {
    return Unsupported("config_groups", groups.is_object() ? json(groups.size()) : groups,
                       "one group for all matrices");
  }
  const std::string prefix = absl::StrCat("config_groups.", groups.begin().key(), ".weights.");
  const json weights = At(*groups.begin(), {"weights"});
  json format = At(config, {"format"});
  if (const json inner = At(*groups.begin(), {"format"}); inner.is_string()) format = inner;
  const json type = At(weights, {"type"});
  if (format == "pack-quantized" && type == "int") return ParsePacked(weights, prefix);
  if ((format == "float-quantized" || format == "naive-quantized") && type == "float") {
    return ParseFloat8(weights, prefix);
  }
  return Unsupported("format", format,
                     "\"pack-quantized\" of type int, \"float-quantized\" of type float");
}

// What tells the two formats of zero points apart: "format" of today's writers, "checkpoint_format"
// of older ones. Null where neither is there, as before there were two.
absl::StatusOr<json> GptqFormat(const json& config) {
  const json older = At(config, {"checkpoint_format"});
  const json newer = At(config, {"format"});
  const char* const field = newer.is_null() ? "checkpoint_format" : "format";
  const json& format = newer.is_null() ? older : newer;
  if (!older.is_null() && older != format) {
    return Unsupported(field, format,
                       absl::StrCat("what checkpoint_format says, ", QuotedJson(older)));
  }
  if (!format.is_null() && format != "gptq" && format != "gptq_v2") {
    return Unsupported(field, format, "\"gptq\", \"gptq_v2\"");
  }
  const json is_marlin = At(config, {"is_marlin_format"});
  if (!is_marlin.is_null() && is_marlin != json(false)) {
    return Unsupported("is_marlin_format", is_marlin, "false");
  }
  return format;
}

absl::StatusOr<StoredQuantization> ParseGptq(const json& config) {
  StoredQuantization stored;
  stored.method = Method::kGptq;
  ASSIGN_OR_RETURN(const int64_t bits, IntegerOf(At(config, {"bits"}), "bits", 1, 16));
  if (bits != 4 && bits != 8) return Unsupported("bits", bits, "4, 8");
  stored.bits = static_cast<int>(bits);
  ASSIGN_OR_RETURN(stored.group_size, GroupSizeOf(At(config, {"group_size"}), "group_size"));
  ASSIGN_OR_RETURN(const json format, GptqFormat(config));
  stored.zero_offset = format == "gptq_v2" ? 0 : 1;
  if (At(config, {"lm_head"}) == json(true)) return Unsupported("lm_head", true, "false");
  stored.name = absl::StrCat("GPTQ, int", bits);
  return stored;
}

absl::StatusOr<StoredQuantization> ParseAwq(const json& config) {
  StoredQuantization stored;
  stored.method = Method::kAwq;
  json bits = At(config, {"bits"});
  if (bits.is_null()) bits = At(config, {"w_bit"});
  if (bits != json(4)) return Unsupported("bits", bits, "4");
  stored.bits = 4;
  json group = At(config, {"group_size"});
  if (group.is_null()) group = At(config, {"q_group_size"});
  ASSIGN_OR_RETURN(stored.group_size, GroupSizeOf(group, "group_size"));
  const json version = At(config, {"version"});
  if (!version.is_null() && version != "gemm" && version != "GEMM") {
    return Unsupported("version", version, "\"gemm\"");
  }
  stored.name = "AWQ, int4";
  return stored;
}

// FBGEMM's quantize_fp8_per_row (gen_ai/src/quantize/quantize.cu) scales a row of activations by
// max(min(amax, bound) / 448, 1 / (448 * 512)) and saturates. Ours have no such floor, but below
// 2^-120, where rows are zeros: no bound may come near that.
absl::StatusOr<float> ActivationBoundOf(const json& value, const std::string& field) {
  constexpr float kLeast = 0x1p-100f;
  constexpr float kMost = std::numeric_limits<float>::max();
  if (value.is_null()) return kNoActivationBound;
  if (!value.is_number() || value.get<double>() < kLeast || value.get<double>() > kMost) {
    return Unsupported(field, value, absl::StrCat("a number in [", kLeast, ", ", kMost, "]"));
  }
  return value.get<float>();
}

absl::StatusOr<StoredQuantization> ParseFbgemm(const json& config) {
  StoredQuantization stored;
  stored.method = Method::kFloat8;
  stored.name = "fbgemm_fp8, FP8 with a scale per row";
  ASSIGN_OR_RETURN(stored.activation_bound,
                   ActivationBoundOf(At(config, {"activation_scale_ub"}), "activation_scale_ub"));
  return stored;
}

// Scales have names of their own (checkpoint/foreign_sources.h), but multiply like all others.
absl::StatusOr<StoredQuantization> ParseFp8(const json& config) {
  if (const json format = At(config, {"fmt"}); !format.is_null() && format != "e4m3") {
    return Unsupported("fmt", format, "\"e4m3\"");
  }
  const json blocks = At(config, {"weight_block_size"});
  if (!blocks.is_null()) return Float8Blocks(blocks, "weight_block_size", "fp8");
  StoredQuantization stored;
  stored.method = Method::kFloat8;
  stored.name = "FP8 with a scale per matrix";
  return stored;
}

// What ModelOpt writes into a file of its own lies in "quantization" there.
const json& ModelOptFields(const json& config) {
  const auto inner = config.find("quantization");
  return inner != config.end() && inner->is_object() ? *inner : config;
}

absl::StatusOr<StoredQuantization> ParseModelOpt(const json& config) {
  const json algorithm = At(ModelOptFields(config), {"quant_algo"});
  const bool is_per_row = algorithm == "FP8_PER_CHANNEL_PER_TOKEN";
  if (!is_per_row && algorithm != "FP8") {
    return Unsupported("quant_algo", algorithm, "\"FP8\", \"FP8_PER_CHANNEL_PER_TOKEN\"");
  }
  StoredQuantization stored;
  stored.method = Method::kFloat8;
  stored.name = absl::StrCat("ModelOpt, FP8 with a scale per ", is_per_row ? "row" : "matrix");
  return stored;
}

absl::StatusOr<StoredQuantization> ParseMethod(const json& config) {
  const json method = At(config, {"quant_method"});
  if (method == "compressed-tensors") return ParseCompressedTensors(config);
  if (method == "gptq") return ParseGptq(config);
  if (method == "awq") return ParseAwq(config);
  if (method == "fbgemm_fp8") return ParseFbgemm(config);
  if (method == "fp8") return ParseFp8(config);
  if (method == "modelopt") return ParseModelOpt(config);
  return Unsupported("quant_method", method.is_null() ? config : method,
                     "\"compressed-tensors\", \"fbgemm_fp8\", \"fp8\", \"modelopt\", \"gptq\", "
                     "\"awq\"");
}

// Modules that are not converted go by one of these names.
std::vector<const char*> SparingFields(const json& method) {
  if (method == "compressed-tensors") return {"ignore"};
  if (method == "modelopt") return {"ignore", "exclude_modules"};
  return {"modules_to_not_convert", "ignored_layers"};
}

absl::StatusOr<SparedMatrices> ParseSpared(const json& config, int64_t num_layers) {
  const json method = At(config, {"quant_method"});
  const json& fields = method == "modelopt" ? ModelOptFields(config) : config;
  for (const char* const field : SparingFields(method)) {
    const json listed = At(fields, {field});
    if (listed.is_null()) continue;
    const auto is_string = [](const json& name) { return name.is_string(); };
    if (!listed.is_array() || !std::all_of(listed.begin(), listed.end(), is_string)) {
      return Unsupported(field, listed, "a list of modules' names");
    }
    return SparedMatrices(listed.get<std::vector<std::string>>(), num_layers);
  }
  return SparedMatrices();
}

}  // namespace

absl::StatusOr<StoredQuantization> ParseStoredQuantization(const json& config, int64_t num_layers) {
  ASSIGN_OR_RETURN(StoredQuantization stored, ParseMethod(config));
  ASSIGN_OR_RETURN(stored.spared, ParseSpared(config, num_layers));
  stored.json = config.dump();
  return stored;
}

nlohmann::ordered_json PackedQuantizationJson(Quantization quantization) {
  const nlohmann::ordered_json weights = {{"num_bits", QuantizedBits(quantization)},
                                          {"type", "int"},
                                          {"symmetric", true},
                                          {"strategy", "group"},
                                          {"group_size", QuantizedGroup(quantization)},
                                          {"dynamic", false},
                                          {"actorder", nullptr}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", weights},
              {"input_activations", nullptr},
              {"output_activations", nullptr}}}}},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme", nullptr}};
}

}  // namespace lockstep
