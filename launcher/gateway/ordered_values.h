// What a chat template sees as values rather than as text, with names in the order in which the
// client wrote them. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of tools, chat_template_kwargs and arguments of calls, each, as JSON: a value of a few bytes
// takes much memory.
inline constexpr size_t kMaxValueBytes = size_t{1} << 20;
inline constexpr int kMaxValueDepth = 64;

// INVALID_ARGUMENT: more than kMaxValueBytes.
absl::Status CheckValueBytes(size_t num_bytes);
// value: the body's field of that name. INVALID_ARGUMENT: CheckValueBytes, or it is nested deeper
// than kMaxValueDepth.
absl::StatusOr<nlohmann::ordered_json> OrderedField(absl::string_view body, const char* name,
                                                    const nlohmann::json& value);

}  // namespace lockstep
