#include "deploy/plan/json_fields.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"
#include "model/json_integer.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;

absl::StatusOr<const json*> Find(const JsonObject& object, const char* field) {
  if (!object.value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(object.where, " is ", QuotedJson(object.value), ", not an object"));
  }
  const auto found = object.value.find(field);
  if (found == object.value.end()) {
    return absl::InvalidArgumentError(absl::StrCat(object.where, field, " is missing"));
  }
  return &*found;
}

absl::Status IsNot(const JsonObject& object, const char* field, const json& value,
                   const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(object.where, field, " is ", QuotedJson(value), "; it must be ", wanted));
}

}  // namespace

json BuiltInTable(std::string_view text) {
  auto table = ParseStrictJson(text);
  LS_CHECK(table.ok()) << table.status().message();
  return *std::move(table);
}

absl::StatusOr<double> JsonObject::Number(const char* field, double least, double most) const {
  ASSIGN_OR_RETURN(const json* found, Find(*this, field));
  if (found->is_number()) {
    const double number = found->get<double>();
    if (number >= least && number <= most) return number;
  }
  return IsNot(*this, field, *found, absl::StrCat("a number from ", least, " to ", most));
}

absl::StatusOr<int> JsonObject::Integer(const char* field, int least, int most) const {
  ASSIGN_OR_RETURN(const json* found, Find(*this, field));
  if (const auto number = IntegerIn(*found, least, most)) return static_cast<int>(*number);
  return IsNot(*this, field, *found, absl::StrCat("a whole number from ", least, " to ", most));
}

absl::StatusOr<std::string> JsonObject::Text(const char* field) const {
  ASSIGN_OR_RETURN(const json* found, Find(*this, field));
  if (!found->is_string()) return IsNot(*this, field, *found, "text");
  return found->get<std::string>();
}

absl::StatusOr<const json*> JsonObject::Array(const char* field) const {
  ASSIGN_OR_RETURN(const json* found, Find(*this, field));
  if (!found->is_array()) return IsNot(*this, field, *found, "an array");
  return found;
}

}  // namespace lockstep::plan
