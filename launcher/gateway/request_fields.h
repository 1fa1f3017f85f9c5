// The fields of a JSON object, one by one, each with its type and range checked. What nobody asked
// for is an error: a misspelt option would otherwise be ignored in silence.
//
// The first error counts; afterwards everything is absent. null is absent, too. Errors carry the
// field's name, with its place, as payload (FieldOf).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of an error of RequestFields; empty: it is about none.
std::string FieldOf(const absl::Status& status);
// INVALID_ARGUMENT about that field.
absl::Status FieldError(const std::string& field, const std::string& message);

class RequestFields {
 public:
  // where: before each name in errors, as "messages[0]."; empty for the request itself.
  explicit RequestFields(const nlohmann::json& object, std::string where = "");

  const nlohmann::json& object() const { return object_; }
  // Null when absent.
  const nlohmann::json* Value(const char* name);
  std::optional<bool> Bool(const char* name);
  std::optional<std::string> Text(const char* name);
  std::optional<float> Number(const char* name);
  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max);
  std::optional<int32_t> Int32(const char* name);
  // Of 64 bits, signed or unsigned.
  std::optional<uint64_t> Seed(const char* name);
  // Taken, whatever it is.
  void Ignore(const char* name) { Value(name); }
  // Only as this, which changes nothing: `why` goes on from "NAME ".
  void Refuse(const char* name, const nlohmann::json& harmless, const std::string& why);

  // "NAME message".
  void Fail(const std::string& name, const std::string& message);
  // INVALID_ARGUMENT: the first error, else the first field that nobody asked for.
  absl::Status Finish();

 private:
  // Null when absent or not of the type, which is an error.
  const nlohmann::json* Typed(const char* name, bool (nlohmann::json::*is_type)() const noexcept,
                              const char* type);

  const nlohmann::json& object_;
  const std::string where_;
  std::set<std::string> taken_;
  absl::Status status_;
};

}  // namespace lockstep
