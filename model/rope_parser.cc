#include "model/rope_parser.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/rope.h"
#include "model/size_limits.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Fields = ConfigFields;

constexpr double kLeastAttentionFactor = 1e-3;
constexpr double kMostAttentionFactor = 1e3;

// Also given outside of the object, where that is the one that counts.
absl::StatusOr<std::optional<int64_t>> ParseOriginal(const Fields& fields,
                                                     std::optional<int64_t> outer) {
  ASSIGN_OR_RETURN(const auto inner,
                   fields.OptionalInt("original_max_position_embeddings", 1, kMaxPositions));
  return outer.has_value() ? outer : inner;
}

absl::StatusOr<RopeScaling> ParseLinearScaling(const Fields& fields) {
  ASSIGN_OR_RETURN(const auto factor, fields.OptionalNumber("factor", 1.0, 1e6));
  if (factor.has_value()) return LinearRopeScaling{*factor};
  return absl::InvalidArgumentError(absl::StrCat(fields.Path("factor"), " is missing"));
}

absl::StatusOr<RopeScaling> ParseLlama3Scaling(const Fields& fields,
                                               std::optional<int64_t> outer_original) {
  Llama3RopeScaling scaling;
  for (const auto& [name, target] : {std::pair{"factor", &scaling.factor},
                                     std::pair{"low_freq_factor", &scaling.low_freq_factor},
                                     std::pair{"high_freq_factor", &scaling.high_freq_factor}}) {
    const double min = target == &scaling.factor ? 1.0 : 1e-6;
    ASSIGN_OR_RETURN(const auto value, fields.OptionalNumber(name, min, 1e6));
    if (!value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(fields.Path(name), " is missing"));
    }
    *target = *value;
  }
  ASSIGN_OR_RETURN(const auto original, ParseOriginal(fields, outer_original));
  if (!original.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.Path("original_max_position_embeddings"), " is missing"));
  }
  scaling.original_max_position_embeddings = *original;
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.Path("low_freq_factor"), " = ", scaling.low_freq_factor,
                     " must be less than high_freq_factor = ", scaling.high_freq_factor));
  }
  return scaling;
}

// The published default, or what mscale and mscale_all_dim make of it (DeepSeek's spelling).
absl::StatusOr<double> ParseAttentionFactor(const Fields& fields, double factor) {
  ASSIGN_OR_RETURN(
      const auto given,
      fields.OptionalNumber("attention_factor", kLeastAttentionFactor, kMostAttentionFactor));
  ASSIGN_OR_RETURN(const auto mscale, fields.OptionalNumber("mscale", 0.0, 1e3));
  ASSIGN_OR_RETURN(const auto all_dim, fields.OptionalNumber("mscale_all_dim", 0.0, 1e3));
  if (given.has_value()) return *given;
  if (mscale.value_or(0.0) == 0.0 || all_dim.value_or(0.0) == 0.0) {
    return YarnAttentionFactor(factor);
  }
  return YarnAttentionFactor(factor, *mscale) / YarnAttentionFactor(factor, *all_dim);
}

absl::StatusOr<RopeScaling> ParseYarn(const Fields& fields, int64_t max_positions,
                                      std::optional<int64_t> outer_original) {
  YarnRopeScaling yarn;
  ASSIGN_OR_RETURN(const auto original, ParseOriginal(fields, outer_original));
  yarn.original_max_position_embeddings = original.value_or(max_positions);
  ASSIGN_OR_RETURN(const auto factor, fields.OptionalNumber("factor", 1.0, 1e6));
  yarn.factor = factor.value_or(static_cast<double>(max_positions) /
                                static_cast<double>(yarn.original_max_position_embeddings));
  if (yarn.factor < 1.0) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.Path("original_max_position_embeddings"), " = ",
        yarn.original_max_position_embeddings, " exceeds max_position_embeddings = ", max_positions,
        " and no factor is given"));
  }
  ASSIGN_OR_RETURN(const auto fast, fields.OptionalNumber("beta_fast", 1e-3, 1e6));
  ASSIGN_OR_RETURN(const auto slow, fields.OptionalNumber("beta_slow", 1e-3, 1e6));
  yarn.beta_fast = fast.value_or(yarn.beta_fast);
  yarn.beta_slow = slow.value_or(yarn.beta_slow);
  if (yarn.beta_slow > yarn.beta_fast) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.Path("beta_slow"), " = ", yarn.beta_slow,
                     " must not exceed beta_fast = ", yarn.beta_fast));
  }
  ASSIGN_OR_RETURN(yarn.attention_factor, ParseAttentionFactor(fields, yarn.factor));
  if (yarn.attention_factor < kLeastAttentionFactor ||
      yarn.attention_factor > kMostAttentionFactor) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s and mscale_all_dim make attention_factor %g; supported: [%g, %g]",
        fields.Path("mscale"), yarn.attention_factor, kLeastAttentionFactor, kMostAttentionFactor));
  }
  ASSIGN_OR_RETURN(const auto truncate, fields.OptionalBool("truncate"));
  yarn.truncate = truncate.value_or(true);
  return yarn;
}

// As many positions as the scaling is made for, which files that were made before it do not say.
absl::Status StretchPositions(const YarnRopeScaling& yarn, ModelConfig& config) {
  if (config.rope_theta <= 1.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_theta = ", config.rope_theta, " must exceed 1 where YaRN scales it"));
  }
  const double positions =
      std::floor(yarn.factor * static_cast<double>(yarn.original_max_position_embeddings));
  if (positions > static_cast<double>(kMaxPositions)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("YaRN's factor %g of original_max_position_embeddings = %d is more than "
                        "%d positions",
                        yarn.factor, yarn.original_max_position_embeddings, kMaxPositions));
  }
  config.max_position_embeddings =
      std::max(config.max_position_embeddings, static_cast<int64_t>(positions));
  return absl::OkStatus();
}

// One of rope_scaling (transformers 4) and rope_parameters (transformers 5, rope_theta inside).
absl::Status ParseRopeObject(const std::string& name, const json& object,
                             std::optional<int64_t> outer_original, ModelConfig& config,
                             std::optional<double>& theta) {
  if (!object.is_object()) return FieldError(name, object, "null or an object");
  const Fields fields(object, absl::StrCat(name, "."));
  for (const auto& [field, value] : object.items()) {
    if (value.is_object())
      return FieldError(fields.Path(field), value, "one setting for all layers");
  }
  ASSIGN_OR_RETURN(theta, fields.OptionalNumber("rope_theta", 1.0, 1e15));
  if (const json* value = fields.Get("partial_rotary_factor");
      value != nullptr && *value != json(1.0)) {
    return FieldError(fields.Path("partial_rotary_factor"), *value, "1.0");
  }
  const json* type = fields.Get("rope_type");
  if (type == nullptr) type = fields.Get("type");  // before transformers 4.43
  if (type == nullptr && name == "rope_scaling") {
    return absl::InvalidArgumentError("rope_scaling.rope_type is missing");
  }
  if (type == nullptr || *type == "default") return absl::OkStatus();
  if (*type == "linear") {
    ASSIGN_OR_RETURN(config.rope_scaling, ParseLinearScaling(fields));
  } else if (*type == "llama3") {
    ASSIGN_OR_RETURN(config.rope_scaling, ParseLlama3Scaling(fields, outer_original));
  } else if (*type == "yarn") {
    ASSIGN_OR_RETURN(config.rope_scaling,
                     ParseYarn(fields, config.max_position_embeddings, outer_original));
  } else {
    return FieldError(fields.Path("rope_type"), *type,
                      "\"default\", \"linear\", \"llama3\", \"yarn\"");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseRope(const ConfigFields& fields, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto outer_theta, fields.OptionalNumber("rope_theta", 1.0, 1e15));
  ASSIGN_OR_RETURN(const auto outer_original,
                   fields.OptionalInt("original_max_position_embeddings", 1, kMaxPositions));
  const json* scaling = fields.Get("rope_scaling");
  const json* parameters = fields.Get("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    return absl::InvalidArgumentError(
        "rope_scaling and rope_parameters are both given and differ; keep one of them");
  }
  std::optional<double> inner_theta;
  if (parameters != nullptr) {
    RETURN_IF_ERROR(
        ParseRopeObject("rope_parameters", *parameters, outer_original, config, inner_theta));
  } else if (scaling != nullptr) {
    RETURN_IF_ERROR(ParseRopeObject("rope_scaling", *scaling, outer_original, config, inner_theta));
  }
  if (outer_theta.has_value() && inner_theta.has_value() && *outer_theta != *inner_theta) {
    return absl::InvalidArgumentError(absl::StrCat("rope_theta is given twice: ", *outer_theta,
                                                   " and, in rope_parameters, ", *inner_theta));
  }
  config.rope_theta = inner_theta.value_or(outer_theta.value_or(10000.0));
  if (!config.rope_scaling.has_value()) return absl::OkStatus();
  const auto* yarn = std::get_if<YarnRopeScaling>(&*config.rope_scaling);
  return yarn == nullptr ? absl::OkStatus() : StretchPositions(*yarn, config);
}

}  // namespace lockstep
