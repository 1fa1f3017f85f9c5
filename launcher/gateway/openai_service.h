// OpenAI's HTTP API in front of a server: which path is answered how.
//
//   POST /v1/completions, /v1/chat/completions     also as streams of events
//   POST /tokenize, /detokenize                    as vLLM has them
//   GET  /v1/models, /v1/models/NAME               the one that is served
//   GET  /health                                   200 while the server serves, else 503
//   GET  /metrics                                  of the server and of this, for Prometheus
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/client/connection.h"
#include "launcher/gateway/access_log.h"
#include "launcher/gateway/gateway_metrics.h"
#include "launcher/gateway/openai_request.h"
#include "launcher/gateway/server_calls.h"
#include "launcher/gateway/side_thread.h"
#include "launcher/http/http_exchange.h"

namespace lockstep {

// Used by the exchanges' thread alone.
class OpenAiService {
 public:
  // Calls show the token that the HTTP client shows, else the connection's own.
  // patience: CompletionRun's. log: of requests, or null.
  OpenAiService(const Connection& connection, absl::Duration patience,
                std::unique_ptr<AccessLog> log = nullptr)
      : connection_(connection),
        server_(connection, side_thread_),
        patience_(patience),
        log_(std::move(log)) {}

  Awaitable<void> Answer(HttpExchange& exchange);

 private:
  Awaitable<void> Route(MeteredExchange& exchange, const char* route);
  Awaitable<void> AnswerHealth(HttpExchange& exchange);
  Awaitable<void> AnswerMetrics(HttpExchange& exchange);
  Awaitable<void> AnswerModels(HttpExchange& exchange);
  // route: one that takes a body.
  Awaitable<void> AnswerPost(MeteredExchange& exchange, const char* route);
  // What its body asks, or why that is none; also SideThread's errors.
  Awaitable<absl::StatusOr<OpenAiRequest>> Parse(HttpExchange& exchange, const char* route);
  Awaitable<void> Complete(MeteredExchange& exchange, const OpenAiRequest& request,
                           const v1::GetServerInfoResponse& info);
  Awaitable<void> AnswerTokenize(HttpExchange& exchange, const OpenAiRequest& request,
                                 const v1::GetServerInfoResponse& info);
  Awaitable<void> AnswerDetokenize(HttpExchange& exchange, const OpenAiRequest& request);

  const Connection& connection_;
  SideThread side_thread_;
  ServerCalls server_;
  const absl::Duration patience_;
  const std::unique_ptr<AccessLog> log_;
  GatewayMetrics metrics_;
  const int64_t started_ = absl::ToUnixSeconds(absl::Now());
};

}  // namespace lockstep
