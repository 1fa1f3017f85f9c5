// OpenAI's HTTP API in front of a server: which path is answered how.
//
//   POST /v1/completions, /v1/chat/completions     also as streams of events
//   GET  /v1/models, /v1/models/NAME               the one that is served
//   GET  /health                                   200 while the server serves, else 503
//   GET  /metrics                                  of the server and of this, for Prometheus
#pragma once

#include <array>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/client/connection.h"
#include "launcher/client/served_chat_template.h"
#include "launcher/gateway/access_log.h"
#include "launcher/gateway/gateway_metrics.h"
#include "launcher/gateway/openai_reply.h"
#include "launcher/gateway/openai_request.h"
#include "launcher/http/http_exchange.h"

namespace lockstep {

// Used by the exchanges' thread alone.
class OpenAiService {
 public:
  // Calls show the token that the HTTP client shows, else the connection's own.
  // patience: CompletionRun's. log: of requests, or null.
  OpenAiService(const Connection& connection, absl::Duration patience,
                std::unique_ptr<AccessLog> log = nullptr)
      : connection_(connection), patience_(patience), log_(std::move(log)) {}

  Awaitable<void> Answer(HttpExchange& exchange);

 private:
  struct ChatPrompt {
    std::vector<int32_t> token_ids;
    AssistantForm form;  // of the answer
  };
  template <typename T>
  using AwaitableOr = Awaitable<absl::StatusOr<T>>;

  Awaitable<void> Route(MeteredExchange& exchange, const char* route);
  Awaitable<void> AnswerHealth(HttpExchange& exchange);
  Awaitable<void> AnswerMetrics(HttpExchange& exchange);
  Awaitable<void> AnswerModels(HttpExchange& exchange);
  Awaitable<void> AnswerCompletion(MeteredExchange& exchange, bool is_chat);
  Awaitable<void> Complete(MeteredExchange& exchange, const OpenAiRequest& request,
                           const v1::GetServerInfoResponse& info);

  // What the server is asked before, with the exchange's token. Errors: what it answers.
  AwaitableOr<v1::GetServerInfoResponse> ServerInfo(const HttpExchange& exchange);
  AwaitableOr<v1::GetStatusResponse> ServerStatus(const HttpExchange& exchange);
  AwaitableOr<std::vector<int32_t>> Tokenize(const HttpExchange& exchange,
                                             v1::TokenizeRequest request);
  AwaitableOr<std::string> Detokenize(const HttpExchange& exchange, std::vector<int32_t> ids);
  AwaitableOr<std::shared_ptr<const ServedChatTemplate>> ChatTemplateFor(
      const HttpExchange& exchange, bool with_tools);
  // options: the request's, in which the chat template decides how a constraint is met.
  AwaitableOr<ChatPrompt> WriteChat(const HttpExchange& exchange, const OpenAiRequest& request,
                                    v1::GenerateRequest& options);
  AwaitableOr<EchoedPrompt> Echo(const HttpExchange& exchange, const OpenAiRequest& request,
                                 OpenAiPrompt& prompt);

  const Connection& connection_;
  const absl::Duration patience_;
  const std::unique_ptr<AccessLog> log_;
  // Of conversations, and of those with tools where the model has another one for them. Shared with
  // requests that run the one before.
  std::array<std::shared_ptr<const ServedChatTemplate>, 2> chat_templates_;
  GatewayMetrics metrics_;
  boost::asio::thread_pool renderer_{1};  // of chat templates
  const int64_t started_ = absl::ToUnixSeconds(absl::Now());
};

}  // namespace lockstep
