// How a served model wants a conversation written: found by asking which role markers its tokenizer
// knows.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/client/connection.h"
#include "launcher/eval/questions.h"

namespace lockstep {

enum class ChatFormat {
  kPlain,    // contents, a line each: base models
  kMarkers,  // "<|user|>...<|end|>": the demo model
  kHeaders,  // "<|start_header_id|>user<|end_header_id|>...": Llama 3
};

std::string ChatFormatName(ChatFormat format);

// Asks the server whether a format's markers are single tokens. Errors: what the server answers.
absl::StatusOr<ChatFormat> DetectChatFormat(const Connection& connection);

// The text after which the assistant speaks; to be sent with parse_special_tokens. BOS is left to
// the server.
std::string RenderChat(ChatFormat format, const std::vector<ChatMessage>& messages);

}  // namespace lockstep
