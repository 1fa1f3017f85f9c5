// The conversation of a chat request, and the functions that the model may call, as variables for
// its chat template: what transformers and vLLM pass to it. Pure.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/gateway/openai_request.h"
#include "launcher/gateway/request_fields.h"

namespace lockstep {

// Of one request.
inline constexpr int kMaxMessages = 2048;
inline constexpr int kMaxTools = 128;
// Of tools, chat_template_kwargs and arguments of calls together, as JSON: a value of a few bytes
// takes much memory.
inline constexpr size_t kMaxStructureBytes = size_t{1} << 20;

// Reads messages, tools, tool_choice and what changes the template; a call that must be made is a
// constraint, after ReadConstraint's. body: what fields are of, in which names have an order.
// Errors: fields', or INVALID_ARGUMENT naming what is wrong inside of a message or tool.
absl::Status ReadConversation(absl::string_view body, RequestFields& fields,
                              OpenAiRequest& request);

}  // namespace lockstep
