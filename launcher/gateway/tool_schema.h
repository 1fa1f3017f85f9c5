// What a call that must be made looks like, as a JSON Schema. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of texts {"name": NAME, "parameters": {...}}, which SplitToolCalls reads, and Llama 3 is taught
// to write. tools: a chat request's, whose names and types were checked. function: the only one
// that may be called; empty = any of them. Names in parameters keep their order.
//
// INVALID_ARGUMENT naming the tool whose parameters are no object's.
absl::StatusOr<nlohmann::ordered_json> ToolCallSchema(const nlohmann::ordered_json& tools,
                                                      const std::string& function);

}  // namespace lockstep
