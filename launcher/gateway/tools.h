// The functions that a chat's model may call. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/gateway/openai_request.h"
#include "launcher/gateway/request_fields.h"

namespace lockstep {

inline constexpr int kMaxTools = 128;  // of one request

// Reads tools and tool_choice. A call that must be made is a constraint, after ReadConstraint's (a
// response_format's gives way to it, or is the answer's where none must be made), and so is that
// calls which may be made are valid, where a function is "strict" and the output may be
// constrained; in which form calls are written is not known yet. body: what fields are of, in which
// names have an order. Errors: fields', or INVALID_ARGUMENT naming what is wrong inside of a tool.
absl::Status ReadTools(absl::string_view body, RequestFields& fields, OpenAiRequest& request);

}  // namespace lockstep
