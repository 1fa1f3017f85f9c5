// The chat template of a served model, ready to run.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/client/connection.h"
#include "model/chat_template/chat_template.h"
#include "nlohmann/json.hpp"

namespace lockstep {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct TrustedPrompt {
  std::string text;  // to be sent with parse_special_tokens and without add_special_tokens
  v1::Thought thought = v1::THOUGHT_NONE;  // that the assistant may begin with
};

// As a template's variables, up to where the assistant speaks.
nlohmann::ordered_json ConversationOf(const std::vector<ChatMessage>& messages);
// What asks a server for the token ids of what a template rendered.
v1::TokenizeRequest TokenizeRequestOf(const std::vector<TextPiece>& pieces);

// Immutable; thread-safe.
class ServedChatTemplate {
 public:
  // source: of the response's templates, not empty. INVALID_ARGUMENT when it is not understood.
  static absl::StatusOr<ServedChatTemplate> Make(const std::string& source,
                                                 const v1::GetChatTemplateResponse& response);

  // The prompt, with BOS where the template has it. input: the template's variables, "messages"
  // among them. INVALID_ARGUMENT when the template refuses them, or cannot be run on them;
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<std::vector<TextPiece>> Render(nlohmann::ordered_json input) const;
  // The same up to the end of the last message's content, a text, with which the model goes on.
  // INVALID_ARGUMENT, too, when the template leaves that out.
  // Source: huggingface.co/docs/transformers, "continue_final_message".
  absl::StatusOr<std::vector<TextPiece>> RenderToContinue(nlohmann::ordered_json input) const;
  // The same of messages that one trusts, up to where the assistant speaks.
  absl::StatusOr<TrustedPrompt> RenderTrusted(const std::vector<ChatMessage>& messages) const;

  // What the assistant may begin with after a rendered prompt: models whose template knows thoughts
  // think, if the prompt's end does not say that this one has begun, or has ended already.
  v1::Thought ThoughtAfter(const std::vector<TextPiece>& prompt) const;
  // The same of an answer that has begun so: it thinks no more, or still does.
  v1::Thought ThoughtWithin(absl::string_view begun) const;

  const std::string& source() const { return source_; }
  // Would Make make the same of these?
  bool IsOf(const std::string& source, const v1::GetChatTemplateResponse& response) const;

 private:
  ServedChatTemplate(std::string source, ChatTemplate chat_template)
      : source_(std::move(source)), template_(std::move(chat_template)) {}
  std::string source_;
  ChatTemplate template_;
  bool thinks_ = false;
  std::map<std::string, std::string> special_tokens_;
};

// Asks the server. nullopt: the model has none. Errors: what the server answers, and Make's.
absl::StatusOr<std::optional<ServedChatTemplate>> FetchChatTemplate(const Connection& connection);

}  // namespace lockstep
