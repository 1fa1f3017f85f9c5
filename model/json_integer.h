// Whole numbers of JSON that others wrote. Pure, any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "nlohmann/json.hpp"

namespace lockstep {

// What `value` is, if it is an integer in [min, max].
inline std::optional<int64_t> IntegerIn(const nlohmann::json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  // Above int64's range a value is unsigned and would wrap when read as signed.
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return std::nullopt;
  }
  const auto number = value.get<int64_t>();
  return number >= min && number <= max ? std::optional(number) : std::nullopt;
}

}  // namespace lockstep
