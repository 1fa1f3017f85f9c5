#include "launcher/client/served_prompts.h"

#include "kernels/base/status_macros.h"
#include "launcher/client/served_chat_template.h"

namespace lockstep {
namespace {

constexpr absl::Duration kTokenizingTimeout = absl::Seconds(60);

absl::StatusOr<std::vector<int32_t>> TokenizePieces(const Connection& connection,
                                                    const std::vector<TextPiece>& pieces) {
  grpc::ClientContext context;
  connection.Prepare(context, kTokenizingTimeout);
  v1::TokenizeResponse response;
  const grpc::Status status =
      connection.stub().Tokenize(&context, TokenizeRequestOf(pieces), &response);
  if (!status.ok()) return connection.Explain(status);
  return std::vector<int32_t>(response.token_ids().begin(), response.token_ids().end());
}

}  // namespace

absl::Status DetokenizePrompts(const Connection& connection, std::vector<Prompt>& prompts) {
  for (Prompt& prompt : prompts) {
    if (prompt.token_ids.empty()) continue;
    grpc::ClientContext context;
    connection.Prepare(context, kTokenizingTimeout);
    v1::DetokenizeRequest request;
    v1::DetokenizeResponse response;
    request.mutable_token_ids()->Assign(prompt.token_ids.begin(), prompt.token_ids.end());
    const grpc::Status status = connection.stub().Detokenize(&context, request, &response);
    if (!status.ok()) return connection.Explain(status);
    prompt.shown = response.text();
  }
  return absl::OkStatus();
}

absl::Status WriteAsChats(const Connection& connection, const std::string& system,
                          std::vector<Prompt>& prompts) {
  ASSIGN_OR_RETURN(const auto chat_template, FetchChatTemplate(connection));
  if (!chat_template) {
    return absl::FailedPreconditionError("the model has no chat template: leave out --chat");
  }
  for (Prompt& prompt : prompts) {
    if (!prompt.token_ids.empty()) {
      return absl::InvalidArgumentError("--chat is for texts, not for token ids");
    }
    std::vector<ChatMessage> messages;
    if (!system.empty()) messages.push_back({"system", system});
    messages.push_back({"user", prompt.shown});
    ASSIGN_OR_RETURN(const auto pieces, chat_template->Render(ConversationOf(messages)));
    ASSIGN_OR_RETURN(prompt.token_ids, TokenizePieces(connection, pieces));
    prompt.thought = chat_template->ThoughtAfter(pieces);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
