#include "launcher/gateway/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/json/strict_json.h"

namespace lockstep {

using nlohmann::json;

JsonFields::JsonFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (object.is_object()) return;
  status_ = absl::InvalidArgumentError(
      absl::StrCat(where_.empty() ? "the body" : where_.substr(0, where_.size() - 1),
                   " must be an object, not ", QuotedJson(object)));
}

const json* JsonFields::Value(const char* name) {
  if (!status_.ok()) return nullptr;
  taken_.insert(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const json* JsonFields::Typed(const char* name, bool (json::*is_type)() const noexcept,
                              const char* type) {
  const json* value = Value(name);
  if (value == nullptr || (value->*is_type)()) return value;
  Fail(name, absl::StrCat("must be ", type, ", not ", QuotedJson(*value)));
  return nullptr;
}

std::optional<bool> JsonFields::Bool(const char* name) {
  const json* value = Typed(name, &json::is_boolean, "true or false");
  return value == nullptr ? std::nullopt : std::optional(value->get<bool>());
}

std::optional<std::string> JsonFields::Text(const char* name) {
  const json* value = Typed(name, &json::is_string, "a string");
  return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
}

std::optional<float> JsonFields::Number(const char* name) {
  const json* value = Typed(name, &json::is_number, "a number");
  if (value == nullptr) return std::nullopt;
  const double number = value->get<double>();
  if (std::abs(number) > std::numeric_limits<float>::max()) {
    Fail(name, absl::StrCat("must be a number of 32 bits, not ", QuotedJson(*value)));
    return std::nullopt;
  }
  return static_cast<float>(number);
}

std::optional<int64_t> JsonFields::Integer(const char* name, int64_t min, int64_t max) {
  const json* value = Typed(name, &json::is_number, "an integer");
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_unsigned()
                        ? value->get<uint64_t>() <= static_cast<uint64_t>(std::max<int64_t>(max, 0))
                        : value->is_number_integer();
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    Fail(name,
         absl::StrCat("must be an integer from ", min, " to ", max, ", not ", QuotedJson(*value)));
    return std::nullopt;
  }
  return value->get<int64_t>();
}

std::optional<int32_t> JsonFields::Int32(const char* name) {
  const auto value =
      Integer(name, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  return value ? std::optional(static_cast<int32_t>(*value)) : std::nullopt;
}

std::optional<uint64_t> JsonFields::Unsigned64(const char* name) {
  const json* value = Typed(name, &json::is_number, "an integer");
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  Fail(name, absl::StrCat("must be an integer from 0 to 2^64 - 1, not ", QuotedJson(*value)));
  return std::nullopt;
}

void JsonFields::Refuse(const char* name, const json& harmless, const std::string& why) {
  const json* value = Value(name);
  if (value != nullptr && *value != harmless) Fail(name, why);
}

void JsonFields::Fail(const std::string& name, const std::string& message) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(where_, name, " ", message));
}

absl::Status JsonFields::Finish() {
  for (const auto& [name, value] : object_.items()) {
    if (!status_.ok()) break;
    if (taken_.count(name) == 0 && !value.is_null()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("unknown field ", Quoted(where_ + name)));
    }
  }
  return status_;
}

}  // namespace lockstep
