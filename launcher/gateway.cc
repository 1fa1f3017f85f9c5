// lockstep gateway: OpenAI's HTTP API in front of a server.
#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "launcher/base/signals.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/security_flags.h"
#include "launcher/cli/values.h"
#include "launcher/client/connection.h"
#include "launcher/gateway/openai_error.h"
#include "launcher/gateway/openai_service.h"
#include "launcher/http/http_server.h"
#include "runtime/security/reachability.h"

namespace lockstep {
namespace {

constexpr char kGatewayCommand[] = "gateway";
constexpr absl::Duration kFirstLookTimeout = absl::Seconds(2);
constexpr std::chrono::milliseconds kDrainTick{20};

struct GatewayOptions {
  ConnectionFlags connection;
  std::string listen = "127.0.0.1:8000";
  TlsFiles https;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;
  bool insecure_listen = false;
  int max_connections = HttpLimits().max_connections;
  double drain_seconds = 30;
  double retry_seconds = 30;
  std::string access_log;  // a file; empty = none
  bool json = false;
};

absl::StatusOr<HttpServerOptions> ServerOptions(const GatewayOptions& options) {
  HttpServerOptions server;
  ASSIGN_OR_RETURN(server.listen, ParseHostPort(options.listen));
  server.limits.max_connections = options.max_connections;
  server.refusal = OpenAiRefusal;
  server.allowed_hosts = options.allowed_hosts;
  server.allowed_origins = options.allowed_origins;
  if (!options.https.empty()) {
    ASSIGN_OR_RETURN(server.tls, LoadTlsIdentity(options.https));
  }
  RETURN_IF_ERROR(CheckExposure({.flag = "--listen",
                                 .address = options.listen,
                                 .is_permitted = server.tls || options.insecure_listen,
                                 .tls_flags = "--https-cert and --https-key"}));
  return server;
}

// What is in front of what, once.
void Announce(const GatewayOptions& options, const HttpServer& server,
              const Connection& connection) {
  const auto info = connection.GetServerInfo(kFirstLookTimeout);
  if (options.json) {
    nlohmann::ordered_json event = {
        {"event", "listening"}, {"url", server.url()}, {"server", connection.server()}};
    if (info.ok()) event["model"] = ValidUtf8(info->model_name());
    if (!info.ok()) event["error"] = ValidUtf8(info.status().message());
    std::printf("%s\n", event.dump().c_str());
  } else {
    std::printf("Gateway  %s/v1 in front of %s: %s\n", server.url().c_str(),
                connection.server().c_str(),
                info.ok() ? TerminalText(info->model_name()).c_str()
                          : OneLine(info.status().message()).c_str());
  }
  std::fflush(stdout);
}

// The io_context, the server that it runs, and how both end.
class Gateway {
 public:
  Gateway(const GatewayOptions& options, const Connection& connection, InterruptWatcher& interrupts,
          std::unique_ptr<AccessLog> access_log)
      : options_(options),
        connection_(connection),
        interrupts_(interrupts),
        interrupted_(io_, interrupts.fd()),
        tick_(io_),
        service_(connection, absl::Seconds(options.retry_seconds), std::move(access_log)) {}
  ~Gateway() { interrupted_.release(); }  // it is the watcher's

  absl::Status Run(const HttpServerOptions& server_options) {
    ASSIGN_OR_RETURN(server_,
                     HttpServer::Start(io_, server_options, [this](HttpExchange& exchange) {
                       return service_.Answer(exchange);
                     }));
    Announce(options_, *server_, connection_);
    boost::asio::co_spawn(io_, End(), [](const std::exception_ptr& error) {
      if (error) std::rethrow_exception(error);
    });
    const auto work = boost::asio::make_work_guard(io_);
    io_.run();
    return absl::OkStatus();
  }

 private:
  using ErrorCode = boost::system::error_code;

  // A first interrupt lets answers end, a second one, or the time that they have, cuts them off.
  // Calls that they wait for are cancelled then, and end before the io_context does.
  Awaitable<void> End() {
    ErrorCode error;
    co_await interrupted_.async_wait(
        boost::asio::posix::stream_descriptor::wait_read,
        boost::asio::redirect_error(boost::asio::use_awaitable, error));
    interrupts_.TakeCount();
    server_->Drain();
    const absl::Time until = SteadyNow() + absl::Seconds(options_.drain_seconds);
    while (server_->num_connections() > 0) {
      if (interrupts_.TakeCount() > 0 || SteadyNow() >= until) server_->Close();
      tick_.expires_after(kDrainTick);
      co_await tick_.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, error));
    }
    io_.stop();
  }

  const GatewayOptions& options_;
  const Connection& connection_;
  InterruptWatcher& interrupts_;
  boost::asio::io_context io_{1};
  boost::asio::posix::stream_descriptor interrupted_;
  boost::asio::steady_timer tick_;
  OpenAiService service_;
  std::unique_ptr<HttpServer> server_;
};

int RunGateway(const GatewayOptions& options) {
  const auto server_options = ServerOptions(options);
  if (!server_options.ok()) return FailUsage(kGatewayCommand, server_options.status().message());
  TakeWriteErrors();
  InterruptWatcher interrupts;  // before gRPC starts threads
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return FailUsage(kGatewayCommand, connection.status().message());
  if (options.insecure_listen && !IsLocalAddress(options.listen).value_or(false)) {
    std::fprintf(stderr, "Warning  prompts, texts and tokens cross the network in clear (%s)\n",
                 options.listen.c_str());
  }
  if (!(*connection)->may_show_tokens()) {
    std::fprintf(
        stderr,
        "Warning  clients' tokens are not passed on to %s, where they would go in clear: use "
        "TLS (--tls-ca), or say --insecure-token\n",
        options.connection.server.c_str());
  }
  std::unique_ptr<AccessLog> access_log;
  if (!options.access_log.empty()) {
    auto opened = AccessLog::Open(options.access_log);
    if (!opened.ok()) return Fail(kGatewayCommand, opened.status());
    access_log = *std::move(opened);
  }
  Gateway gateway(options, **connection, interrupts, std::move(access_log));
  const absl::Status status = gateway.Run(*server_options);
  return status.ok() ? kExitOk : Fail(kGatewayCommand, status);
}

void AddHttpFlags(CLI::App& command, GatewayOptions& options) {
  const char* group = "HTTP";
  command
      .add_option("--listen", options.listen, "where HTTP clients connect; port 0 = any free one")
      ->type_name("HOST:PORT")
      ->check(HostAndPort())
      ->capture_default_str()
      ->group(group);
  AddServerTlsFlags(command, "https", group, options.https);
  command
      .add_flag("--insecure-listen", options.insecure_listen,
                "let --listen be reached from other hosts without TLS")
      ->group(group);
  AddAllowedHostFlag(command, group, options.allowed_hosts);
  AddAllowedOriginFlag(command, group, options.allowed_origins);
  command
      .add_option("--max-connections", options.max_connections,
                  "with more, those end that are idle; else they wait until others end")
      ->type_name("N")
      ->check(Between(1, 60000))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--drain-seconds", options.drain_seconds,
                  "how long running answers may take to finish after Ctrl-C")
      ->type_name("SECONDS")
      ->check(Between(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--retry-seconds", options.retry_seconds,
                  "how long to look for a server that went away and go on, if it keeps a journal")
      ->type_name("SECONDS")
      ->check(Between(0.0, 1e6))
      ->capture_default_str()
      ->group(kConnectionGroup);
  command
      .add_option("--access-log", options.access_log,
                  "append a line of JSON for each request: who, what, status, tokens, times; no "
                  "texts (default: none)")
      ->type_name("FILE")
      ->group(group);
  command.add_flag("--json", options.json, "print events as JSON objects, one per line")
      ->group(group);
}

}  // namespace

void AddGatewayCommand(CLI::App& program, CommandBody& chosen) {
  GatewayOptions* options = nullptr;
  CLI::App* command =
      AddCommand(program, chosen, kGatewayCommand, "Answer OpenAI's HTTP API in front of a server",
                 &RunGateway, options);
  AddHttpFlags(*command, *options);
  AddConnectionFlags(*command, options->connection);
  command->footer(
      "Answers POST /v1/completions, /v1/chat/completions, /tokenize and /detokenize,\n"
      "GET /v1/models, /health and /metrics. A client's \"Authorization: Bearer TOKEN\" goes to\n"
      "the server, which checks it; --token-file's is shown for clients that have none.\n"
      "Example:\n  lockstep gateway &\n"
      "  curl localhost:8000/v1/completions -H 'Content-Type: application/json' \\\n"
      "    -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 40}'\n"
      "Exit codes: 0 stopped on request, 1 a failure, 2 wrong usage.");
}

}  // namespace lockstep
