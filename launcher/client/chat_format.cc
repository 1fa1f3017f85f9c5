#include "launcher/client/chat_format.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

absl::StatusOr<bool> IsOneToken(const Connection& connection, const std::string& text) {
  grpc::ClientContext context;
  connection.Prepare(context, kTimeout);
  const v1::TokenizeRequest request = MarkerQuestion(text);
  v1::TokenizeResponse response;
  const grpc::Status status = connection.stub().Tokenize(&context, request, &response);
  if (!status.ok()) return connection.Explain(status);
  return response.token_ids_size() == 1;
}

// What stands before what this role says: markers, and text.
std::pair<std::string, std::string> Opening(ChatFormat format, const std::string& role) {
  switch (format) {
    case ChatFormat::kMarkers:
      return {absl::StrCat("<|", role, "|>"), ""};
    case ChatFormat::kHeaders:
      return {absl::StrCat("<|start_header_id|>", role, "<|end_header_id|>"), "\n\n"};
    case ChatFormat::kPlain:
      break;
  }
  return {"", ""};
}

const char* Closing(ChatFormat format) {
  switch (format) {
    case ChatFormat::kMarkers:
      return "<|end|>";
    case ChatFormat::kHeaders:
      return "<|eot_id|>";
    case ChatFormat::kPlain:
      break;
  }
  return "\n";
}

}  // namespace

v1::TokenizeRequest MarkerQuestion(const std::string& marker) {
  v1::TokenizeRequest request;
  request.set_text(marker);
  request.set_parse_special_tokens(true);
  request.set_add_special_tokens(false);
  return request;
}

std::string ChatFormatName(ChatFormat format) {
  switch (format) {
    case ChatFormat::kMarkers:
      return "<|role|>";
    case ChatFormat::kHeaders:
      return "Llama 3";
    case ChatFormat::kPlain:
      break;
  }
  return "plain text";
}

absl::StatusOr<ChatFormat> DetectChatFormat(const Connection& connection) {
  for (const auto& [format, marker] : kChatMarkers) {
    const auto known = IsOneToken(connection, marker);
    if (!known.ok()) return known.status();
    if (*known) return format;
  }
  return ChatFormat::kPlain;
}

std::vector<ChatPiece> ChatPieces(ChatFormat format, const std::vector<ChatMessage>& messages) {
  std::vector<ChatPiece> pieces;
  const auto add = [&](std::string text, bool is_markup) {
    if (!text.empty()) pieces.push_back({std::move(text), is_markup});
  };
  for (const ChatMessage& message : messages) {
    const auto [markers, text] = Opening(format, message.role);
    add(markers, true);
    add(absl::StrCat(text, message.content), false);
    add(Closing(format), true);
  }
  const auto [markers, text] = Opening(format, "assistant");
  add(markers, true);
  add(text, false);
  return pieces;
}

std::string RenderChat(ChatFormat format, const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatPiece& piece : ChatPieces(format, messages)) text += piece.text;
  return text;
}

}  // namespace lockstep
