// GET /metrics of `serve` and `controller`: what Prometheus reads.
//
// A thread of its own, which asks the controller for each answer.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "launcher/cli/serving_flags.h"
#include "launcher/http/http_exchange.h"
#include "launcher/http/http_server.h"
#include "runtime/controller/controller.h"
#include "runtime/security/api_tokens.h"

namespace lockstep {

// As secure as the clients' service: encrypted with its certificate, where it has one. Nothing
// without --metrics-listen. Errors: INVALID_ARGUMENT for an address that is none,
// FAILED_PRECONDITION for one that others can reach without TLS.
absl::StatusOr<std::optional<HttpServerOptions>> MetricsListener(
    const ControllerFlags& flags, const ControllerOptions& controller);

class MetricsServer {
 public:
  // tokens: one of which every request must show. Errors: HttpServer::Start's. The controller must
  // outlive it, and is shut down after it: answers are waited for.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const HttpServerOptions& options,
                                                              std::optional<ApiTokens> tokens,
                                                              const Controller& controller);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  std::string url() const;  // "http://127.0.0.1:9400/metrics"

 private:
  MetricsServer(std::optional<ApiTokens> tokens, const Controller& controller)
      : tokens_(std::move(tokens)), controller_(controller) {}
  Awaitable<void> Answer(HttpExchange& exchange) const;
  HttpReply ReplyTo(const HttpRequest& request) const;

  const std::optional<ApiTokens> tokens_;
  const Controller& controller_;
  boost::asio::io_context io_{1};
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

}  // namespace lockstep
