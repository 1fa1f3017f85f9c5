// What the gateway asks its server, but for generations: with the token that the HTTP client shows,
// else the connection's own. Errors: what the server answers (UpstreamError).
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/client/connection.h"
#include "launcher/client/served_chat_template.h"
#include "launcher/gateway/openai_reply.h"
#include "launcher/gateway/openai_request.h"
#include "launcher/gateway/side_thread.h"
#include "launcher/http/http_exchange.h"

namespace lockstep {

inline constexpr size_t kMaxUpstreamBytes = 4 << 20;  // of a request: the server takes no more

// Used by the exchanges' thread alone.
class ServerCalls {
 public:
  struct ChatPrompt {
    std::vector<int32_t> token_ids;
    AssistantForm form;  // of the answer
  };
  template <typename T>
  using AwaitableOr = Awaitable<absl::StatusOr<T>>;

  ServerCalls(const Connection& connection, SideThread& side_thread)
      : connection_(connection), side_thread_(side_thread) {}

  // Without a token, which who checks a server's health does not have.
  Awaitable<bool> Serves(const HttpExchange& exchange);
  AwaitableOr<v1::GetServerInfoResponse> ServerInfo(const HttpExchange& exchange);
  AwaitableOr<v1::GetStatusResponse> ServerStatus(const HttpExchange& exchange);
  AwaitableOr<std::vector<int32_t>> Tokenize(const HttpExchange& exchange,
                                             v1::TokenizeRequest request);
  AwaitableOr<std::string> Detokenize(const HttpExchange& exchange, std::vector<int32_t> ids);
  // The ids of a prompt, which its options say how to read.
  AwaitableOr<std::vector<int32_t>> TokenizePrompt(const HttpExchange& exchange,
                                                   const OpenAiRequest& request,
                                                   const std::string& prompt);
  // options: the request's, in which the chat template decides how a constraint is met. Also
  // SideThread's errors.
  AwaitableOr<ChatPrompt> WriteChat(HttpExchange& exchange, const OpenAiRequest& request,
                                    v1::GenerateRequest& options);
  AwaitableOr<EchoedPrompt> Echo(const HttpExchange& exchange, const OpenAiRequest& request,
                                 OpenAiPrompt& prompt);

 private:
  // The template that a request wants, parsed again only when it is another one.
  AwaitableOr<std::shared_ptr<const ServedChatTemplate>> ChatTemplateFor(
      const HttpExchange& exchange, bool with_tools);

  const Connection& connection_;
  SideThread& side_thread_;
  // Of conversations, and of those with tools where the model has another one for them. Shared with
  // requests that run the one before.
  std::array<std::shared_ptr<const ServedChatTemplate>, 2> chat_templates_;
};

}  // namespace lockstep
