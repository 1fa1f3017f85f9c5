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

// Reads messages, prediction, what changes the template, and tools (ReadTools). body: what fields
// are of, in which names have an order.
// Errors: fields', or INVALID_ARGUMENT naming what is wrong inside of a message or tool.
absl::Status ReadConversation(absl::string_view body, RequestFields& fields,
                              OpenAiRequest& request);

}  // namespace lockstep
