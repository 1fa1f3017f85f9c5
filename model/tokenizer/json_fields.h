// Reading the members of one JSON object with errors that name the member. Borrows the object.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/json_integer.h"
#include "model/tokenizer/tokenizer_file.h"
#include "nlohmann/json.hpp"

namespace lockstep {

class JsonFields {
 public:
  // `where` names the object in errors: "pre_tokenizer".
  static absl::StatusOr<JsonFields> Of(const nlohmann::json& value, std::string where) {
    if (value.is_object()) return JsonFields(value, std::move(where));
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", where, " is a ", value.type_name(), ", not an object"));
  }

  const std::string& where() const { return where_; }

  // The member, or a JSON null if it is absent.
  const nlohmann::json& operator[](const std::string& name) const {
    static const nlohmann::json kNull;
    const auto member = object_->find(name);
    return member == object_->end() ? kNull : *member;
  }
  bool Has(const std::string& name) const { return !(*this)[name].is_null(); }

  absl::Status Error(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", where_, ": ", what));
  }
  absl::Status Unsupported(const std::string& name) const {
    return Error(absl::StrCat(name, " = ", Show((*this)[name]), " is not supported"));
  }

  absl::StatusOr<bool> Bool(const std::string& name, bool if_absent) const {
    const nlohmann::json& value = (*this)[name];
    if (value.is_null()) return if_absent;
    if (value.is_boolean()) return value.get<bool>();
    return WrongType(name, "true or false");
  }
  absl::StatusOr<std::string> String(const std::string& name) const {
    const nlohmann::json& value = (*this)[name];
    if (value.is_string()) return value.get_ref<const std::string&>();
    return WrongType(name, "a string");
  }
  absl::StatusOr<int64_t> Int(const std::string& name, int64_t low, int64_t high) const {
    if (const auto integer = IntegerIn((*this)[name], low, high)) return *integer;
    return WrongType(name, absl::StrCat("an integer from ", low, " to ", high));
  }
  // INVALID_ARGUMENT unless the member is absent, null or `harmless`.
  absl::Status Refuse(const std::string& name, const nlohmann::json& harmless) const {
    const nlohmann::json& value = (*this)[name];
    if (value.is_null() || value == harmless) return absl::OkStatus();
    return Unsupported(name);
  }

 private:
  JsonFields(const nlohmann::json& object, std::string where)
      : object_(&object), where_(std::move(where)) {}

  static std::string Show(const nlohmann::json& value) {
    return Quote(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  absl::Status WrongType(const std::string& name, const std::string& wanted) const {
    return Error(absl::StrCat(name, " is ", Show((*this)[name]), ", not ", wanted));
  }

  const nlohmann::json* object_;
  std::string where_;
};

}  // namespace lockstep
