// Fields of a JSON object of a checkpoint's configuration, read with their limits. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"
#include "model/json_integer.h"
#include "nlohmann/json.hpp"

namespace lockstep {

inline absl::Status FieldError(const std::string& field, const nlohmann::json& value,
                               const std::string& supported) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " = ", QuotedJson(value), " is not supported; supported: ", supported));
}

// Errors: INVALID_ARGUMENT naming the field, its value and what is supported.
class ConfigFields {
 public:
  // `prefix` names the object in errors ("rope_scaling."). The object must outlive this.
  ConfigFields(const nlohmann::json& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  bool Has(const std::string& name) const { return object_.contains(name); }
  // Null when absent or null.
  const nlohmann::json* Get(const std::string& name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  absl::StatusOr<std::optional<int64_t>> OptionalInt(const std::string& name, int64_t min,
                                                     int64_t max) const {
    const nlohmann::json* value = Get(name);
    if (value == nullptr) return std::nullopt;
    const std::optional<int64_t> integer = IntegerIn(*value, min, max);
    if (integer.has_value()) return integer;
    return FieldError(Path(name), *value, absl::StrCat("an integer in [", min, ", ", max, "]"));
  }

  absl::Status RequiredInt(const std::string& name, int64_t min, int64_t max, int64_t& out) const {
    ASSIGN_OR_RETURN(const std::optional<int64_t> value, OptionalInt(name, min, max));
    if (!value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(Path(name), " is missing"));
    }
    out = *value;
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<double>> OptionalNumber(const std::string& name, double min,
                                                       double max) const {
    const nlohmann::json* value = Get(name);
    if (value == nullptr) return std::nullopt;
    const bool in_range =
        value->is_number() && value->get<double>() >= min && value->get<double>() <= max;
    if (!in_range) {
      return FieldError(Path(name), *value, absl::StrCat("a number in [", min, ", ", max, "]"));
    }
    return value->get<double>();
  }

  absl::StatusOr<std::optional<bool>> OptionalBool(const std::string& name) const {
    const nlohmann::json* value = Get(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) return FieldError(Path(name), *value, "true or false");
    return value->get<bool>();
  }

  std::string Path(const std::string& name) const { return absl::StrCat(prefix_, name); }

 private:
  const nlohmann::json& object_;
  const std::string prefix_;
};

}  // namespace lockstep
