// What a call that must be made looks like, as a JSON Schema. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/gateway/tool_calls.h"
#include "lockstep/v1/generation.pb.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of the JSON that SplitToolCalls reads, as models write it that were taught the form; what marks
// it is not part of it. tools: a chat request's, whose names and types were checked. function: the
// only one that may be called; empty = any of them. Names in parameters keep their order.
//
// INVALID_ARGUMENT naming the tool whose parameters are no object's.
absl::StatusOr<nlohmann::ordered_json> ToolCallSchema(const nlohmann::ordered_json& tools,
                                                      const std::string& function,
                                                      ToolCallForm form = ToolCallForm::kJson);

// The constraint of a call that must be made, in that form, with what marks it. ToolCallSchema's
// errors.
absl::Status ConstrainToCall(const nlohmann::ordered_json& tools, const std::string& function,
                             ToolCallForm form, v1::OutputConstraint& constraint);

}  // namespace lockstep
