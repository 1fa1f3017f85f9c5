// Reading JSON that came with the program, or from files that people keep and edit. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lockstep::plan {

// A table that is part of the program (tables.h): what is wrong in it is a bug.
nlohmann::json BuiltInTable(std::string_view text);

// Fields of an object that an error calls `where`, like "speeds[2].". INVALID_ARGUMENT naming the
// field, its value and what it must be.
struct JsonObject {
  const nlohmann::json& value;
  std::string where;

  absl::StatusOr<double> Number(const char* field, double least, double most) const;
  absl::StatusOr<int> Integer(const char* field, int least, int most) const;
  absl::StatusOr<std::string> Text(const char* field) const;
  absl::StatusOr<const nlohmann::json*> Array(const char* field) const;
};

}  // namespace lockstep::plan
