#include "launcher/serving/metrics_server.h"

#include <cstdio>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "kernels/base/status_macros.h"
#include "launcher/metrics/server_metrics.h"
#include "runtime/security/reachability.h"

namespace lockstep {
namespace {

constexpr absl::Duration kStatusTimeout = absl::Seconds(5);
// Scrapers are few, and ask for little.
constexpr int kMaxConnections = 64;
constexpr int64_t kMaxBodyBytes = 1 << 10;

std::optional<v1::GetStatusResponse> StatusOf(const Controller& controller) {
  struct Answer {
    v1::GetStatusResponse status;
    absl::Notification is_there;
  };
  const auto answer = std::make_shared<Answer>();  // which may come after nobody waits any more
  controller.GetStatus([answer](v1::GetStatusResponse status) {
    answer->status = std::move(status);
    answer->is_there.Notify();
  });
  if (!answer->is_there.WaitForNotificationWithTimeout(kStatusTimeout)) return std::nullopt;
  return std::move(answer->status);
}

// What Asio throws (no memory for a connection) ends that connection, not the server of a model.
void RunToTheEnd(boost::asio::io_context& io) {
  while (!io.stopped()) {
    try {
      io.run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "lockstep: warning: a reader of metrics is dropped: %s\n", error.what());
    }
  }
}

}  // namespace

absl::StatusOr<std::optional<HttpServerOptions>> MetricsListener(
    const ControllerFlags& flags, const ControllerOptions& controller) {
  const std::string& address = flags.metrics_listen;
  if (address.empty()) return std::nullopt;
  HttpServerOptions options;
  options.allowed_hosts = flags.allowed_hosts;
  ASSIGN_OR_RETURN(options.listen, ParseHostPort(address));
  options.limits.max_connections = kMaxConnections;
  options.limits.max_body_bytes = kMaxBodyBytes;
  options.tls = controller.client_tls;
  RETURN_IF_ERROR(CheckExposure({.flag = "--metrics-listen",
                                 .address = address,
                                 .is_permitted = options.tls || controller.insecure_listen,
                                 .tls_flags = "--tls-cert and --tls-key"}));
  return options;
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const HttpServerOptions& options, std::optional<ApiTokens> tokens,
    const Controller& controller) {
  std::unique_ptr<MetricsServer> metrics(new MetricsServer(std::move(tokens), controller));
  ASSIGN_OR_RETURN(
      metrics->server_,
      HttpServer::Start(metrics->io_, options, [it = metrics.get()](HttpExchange& exchange) {
        return it->Answer(exchange);
      }));
  metrics->thread_ = std::thread([&io = metrics->io_] { RunToTheEnd(io); });
  return metrics;
}

MetricsServer::~MetricsServer() {
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

std::string MetricsServer::url() const { return absl::StrCat(server_->url(), kMetricsPath); }

Awaitable<void> MetricsServer::Answer(HttpExchange& exchange) const {
  co_await exchange.Reply(ReplyTo(exchange.request()));
}

HttpReply MetricsServer::ReplyTo(const HttpRequest& request) const {
  if (tokens_ && !tokens_->Accept(request.authorization)) {
    return PlainReply(401, "a token is wanted: \"Authorization: Bearer TOKEN\"");
  }
  if (request.path != kMetricsPath) return PlainReply(404, "there is nothing but /metrics");
  if (request.method != "GET" && request.method != "HEAD") {
    HttpReply reply = PlainReply(405, "only GET and HEAD");
    reply.allow = "GET, HEAD";
    return reply;
  }
  const std::optional<v1::GetStatusResponse> status = StatusOf(controller_);
  if (!status) return PlainReply(503, "the controller does not answer");
  MetricFamilies families;
  AddServerMetrics(controller_.GetServerInfo(), *status, families);
  HttpReply reply;
  reply.content_type = kMetricsContentType;
  reply.body = families.Text();
  return reply;
}

}  // namespace lockstep
