// How a served model wants a conversation written: found by asking which role markers its tokenizer
// knows. (Templates that a checkpoint brings are programs, which nobody here runs.)
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/client/connection.h"

namespace lockstep {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

enum class ChatFormat {
  kPlain,    // contents, a line each: base models
  kMarkers,  // "<|user|>...<|end|>": the demo model
  kHeaders,  // "<|start_header_id|>user<|end_header_id|>...": Llama 3
};

std::string ChatFormatName(ChatFormat format);

// A model has the format whose marker is a single token, the first of these, else kPlain.
inline constexpr std::pair<ChatFormat, const char*> kChatMarkers[] = {
    {ChatFormat::kMarkers, "<|assistant|>"}, {ChatFormat::kHeaders, "<|start_header_id|>"}};
// What asks a server whether it is one.
v1::TokenizeRequest MarkerQuestion(const std::string& marker);
// Asks the server. Errors: what it answers.
absl::StatusOr<ChatFormat> DetectChatFormat(const Connection& connection);

// A part of a conversation: the format's markers, in which special tokens are meant, or what
// somebody said, which is text whatever it looks like.
struct ChatPiece {
  std::string text;
  bool is_markup = false;
};

// Up to where the assistant speaks. BOS is left to the server.
std::vector<ChatPiece> ChatPieces(ChatFormat format, const std::vector<ChatMessage>& messages);
// The same as one text, to be sent with parse_special_tokens: for contents that one trusts.
std::string RenderChat(ChatFormat format, const std::vector<ChatMessage>& messages);

}  // namespace lockstep
