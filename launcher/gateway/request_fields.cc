#include "launcher/gateway/request_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/json/strict_json.h"
#include "model/json_integer.h"

namespace lockstep {

using nlohmann::json;

namespace {

constexpr char kFieldPayload[] = "lockstep/field";

}  // namespace

absl::Status FieldError(const std::string& field, const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

std::string FieldOf(const absl::Status& status) {
  return std::string(status.GetPayload(kFieldPayload).value_or(absl::Cord()));
}

RequestFields::RequestFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (object.is_object()) return;
  const std::string name = where_.substr(0, where_.size() - (where_.empty() ? 0 : 1));
  status_ = FieldError(name, absl::StrCat(name.empty() ? "the body" : name,
                                          " must be an object, not ", QuotedJson(object)));
}

const json* RequestFields::Value(const char* name) {
  if (!status_.ok()) return nullptr;
  taken_.insert(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const json* RequestFields::Typed(const char* name, bool (json::*is_type)() const noexcept,
                                 const char* type) {
  const json* value = Value(name);
  if (value == nullptr || (value->*is_type)()) return value;
  Fail(name, absl::StrCat("must be ", type, ", not ", QuotedJson(*value)));
  return nullptr;
}

std::optional<bool> RequestFields::Bool(const char* name) {
  const json* value = Typed(name, &json::is_boolean, "true or false");
  return value == nullptr ? std::nullopt : std::optional(value->get<bool>());
}

std::optional<std::string> RequestFields::Text(const char* name) {
  const json* value = Typed(name, &json::is_string, "a string");
  return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
}

std::optional<float> RequestFields::Number(const char* name) {
  const json* value = Typed(name, &json::is_number, "a number");
  if (value == nullptr) return std::nullopt;
  const double number = value->get<double>();
  if (std::abs(number) > std::numeric_limits<float>::max()) {
    Fail(name, absl::StrCat("must be a number of 32 bits, not ", QuotedJson(*value)));
    return std::nullopt;
  }
  return static_cast<float>(number);
}

std::optional<int64_t> RequestFields::Integer(const char* name, int64_t min, int64_t max) {
  const json* value = Value(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> integer = IntegerIn(*value, min, max);
  if (!integer) {
    Fail(name,
         absl::StrCat("must be an integer from ", min, " to ", max, ", not ", QuotedJson(*value)));
  }
  return integer;
}

std::optional<int32_t> RequestFields::Int32(const char* name) {
  const auto value =
      Integer(name, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  return value ? std::optional(static_cast<int32_t>(*value)) : std::nullopt;
}

std::optional<uint64_t> RequestFields::Seed(const char* name) {
  const json* value = Typed(name, &json::is_number, "an integer");
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_integer()) return static_cast<uint64_t>(value->get<int64_t>());
  Fail(name, absl::StrCat("must be an integer from -2^63 to 2^64 - 1, not ", QuotedJson(*value)));
  return std::nullopt;
}

void RequestFields::Refuse(const char* name, const json& harmless, const std::string& why) {
  const json* value = Value(name);
  if (value != nullptr && *value != harmless) Fail(name, why);
}

void RequestFields::Fail(const std::string& name, const std::string& message) {
  if (!status_.ok()) return;
  status_ = FieldError(where_ + name, absl::StrCat(where_, name, " ", message));
}

absl::Status RequestFields::Finish() {
  for (const auto& [name, value] : object_.items()) {
    if (!status_.ok()) break;
    if (taken_.count(name) == 0 && !value.is_null()) {
      status_ = FieldError(where_ + name, absl::StrCat("unknown field ", Quoted(where_ + name)));
    }
  }
  return status_;
}

}  // namespace lockstep
