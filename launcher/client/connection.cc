#include "launcher/client/connection.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"
#include "runtime/security/api_tokens.h"
#include "runtime/security/reachability.h"

namespace lockstep {
namespace {

// Prompt log-probabilities of a long prompt are the largest message a server sends.
constexpr int kMaxReceiveBytes = 256 << 20;

// The words are gRPC's; a server of ours may be unavailable for reasons that it tells itself, of
// connections, too.
bool IsUnavailableAs(const grpc::Status& status, std::initializer_list<const char*> beginnings) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         std::any_of(beginnings.begin(), beginnings.end(), [&](const char* beginning) {
           return absl::StartsWith(status.error_message(), beginning);
         });
}

bool IsTransportError(const grpc::Status& status) {
  return IsUnavailableAs(status, {"failed to connect to all addresses", "DNS resolution failed",
                                  "C-ares status", "empty address list"});
}

bool IsLostConnection(const grpc::Status& status) {
  return IsUnavailableAs(
      status, {"Socket closed", "Connection reset by peer", "Broken pipe", "GOAWAY received",
               "Endpoint read failed", "Stream removed", "recvmsg:", "keepalive watchdog timeout"});
}

// Why a connection failed although somebody listens; nullopt when that is not what happened. The
// words matched are gRPC's and OpenSSL's.
std::optional<std::string> WhyNoTls(const std::string& message, const std::string& server,
                                    bool encrypted) {
  const auto has = [&](const char* words) { return absl::StrContains(message, words); };
  if (has("wrong version number")) {
    return absl::StrCat("the server at ", server, " does not speak TLS: leave out --tls-*");
  }
  if (has("certificate verify failed")) {
    return absl::StrCat("the certificate of the server at ", server,
                        " is not signed by the authorities of --tls-ca");
  }
  if (has("is not in peer certificate")) {
    return absl::StrCat("the certificate of the server at ", server,
                        " is for another name: see --tls-server-name");
  }
  if (has("handshake failed")) {
    return absl::StrCat("no TLS with the server at ", server, ": ", message);
  }
  if (!has("failed to connect") || !has("Socket closed")) return std::nullopt;
  return absl::StrCat("the server at ", server, " hangs up: ",
                      encrypted ? "it wants a certificate of another authority (--tls-cert)"
                                : "it wants TLS (--tls-ca)");
}

// Nobody between us and the server reads them.
bool MayShowTokens(const ConnectionFlags& flags) {
  return !flags.tls.empty() || flags.insecure_token || IsLocalAddress(flags.server).value_or(false);
}

}  // namespace

void AddConnectionFlags(CLI::App& command, ConnectionFlags& flags) {
  const auto add = [&](const char* name, std::string& value, const char* environment,
                       const char* help) {
    return command.add_option(name, value, help)
        ->type_name("FILE")
        ->envname(environment)
        ->group(kConnectionGroup);
  };
  command.add_option("--server", flags.server, "address of the server")
      ->type_name("HOST:PORT")
      ->envname("LOCKSTEP_SERVER")
      ->capture_default_str()
      ->group(kConnectionGroup);
  add("--tls-ca", flags.tls.authority, "LOCKSTEP_TLS_CA",
      "use TLS and trust servers whose certificate these (PEM) signed");
  add("--tls-cert", flags.tls.certificate, "LOCKSTEP_TLS_CERT",
      "use TLS and show this certificate (PEM)");
  add("--tls-key", flags.tls.key, "LOCKSTEP_TLS_KEY", "its key (PEM, mode 0600)");
  command
      .add_option("--tls-server-name", flags.tls_server_name,
                  "name in the server's certificate (default: the host of --server)")
      ->type_name("NAME")
      ->group(kConnectionGroup);
  add("--token-file", flags.token_file, "LOCKSTEP_TOKEN_FILE",
      "show the API token in this file (mode 0600)");
  command
      .add_flag("--insecure-token", flags.insecure_token,
                "show the token to another host without TLS")
      ->group(kConnectionGroup);
}

Connection::Connection(const ConnectionFlags& flags, std::string authorization, Dial dial)
    : server_(flags.server),
      encrypted_(!flags.tls.empty()),
      may_show_tokens_(MayShowTokens(flags)),
      authorization_(std::move(authorization)),
      dial_(std::move(dial)),
      channel_(dial_()),
      links_(std::make_shared<Links>()) {
  absl::MutexLock lock(&links_->mutex);
  links_->all.push_back(std::make_unique<Link>());
  links_->all.front()->stub = v1::Generation::NewStub(channel_);
  stub_ = links_->all.front()->stub.get();
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ConnectionFlags& flags) {
  if (!absl::StartsWith(flags.server, "unix:")) {
    RETURN_IF_ERROR(ParseHostPort(flags.server).status());
  }
  DialSecurity security{.tls = std::nullopt, .server_name = flags.tls_server_name};
  if (!flags.tls.empty()) {
    ASSIGN_OR_RETURN(security.tls, LoadTlsIdentity(flags.tls));
  } else if (!flags.tls_server_name.empty()) {
    return absl::InvalidArgumentError("--tls-server-name means nothing without --tls-ca");
  }
  std::string authorization;
  if (!flags.token_file.empty()) {
    ASSIGN_OR_RETURN(const ApiTokens tokens, ApiTokens::Load(flags.token_file));
    if (!MayShowTokens(flags)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the token would go to ", flags.server,
                       " in clear: use TLS (--tls-ca), or say --insecure-token"));
    }
    authorization = BearerOf(tokens.front());
  }
  grpc::ChannelArguments arguments;
  // A proxy set for the web must not swallow a connection to a machine next door.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A restarted server is found soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetMaxSendMessageSize(-1);
  const auto credentials = ChannelCredentialsOf(security, flags.server, arguments);
  // Else channels of one address share a TCP connection.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto dial = [server = flags.server, credentials, arguments] {
    return grpc::CreateCustomChannel(server, credentials, arguments);
  };
  return std::unique_ptr<Connection>(new Connection(flags, std::move(authorization), dial));
}

std::shared_ptr<v1::Generation::Stub> Connection::StreamStub() const {
  absl::MutexLock lock(&links_->mutex);
  auto& links = links_->all;
  auto link = std::ranges::find_if(
      links, [](const auto& each) { return each->num_streams < kMostStreams; });
  if (link == links.end()) {
    links.push_back(std::make_unique<Link>());
    link = links.end() - 1;
    (*link)->stub = v1::Generation::NewStub(dial_());
  }
  ++(*link)->num_streams;
  return {(*link)->stub.get(), [links = links_, taken = link->get()](v1::Generation::Stub*) {
            absl::MutexLock lock(&links->mutex);
            --taken->num_streams;
          }};
}

void Connection::Prepare(grpc::ClientContext& context, absl::Duration timeout,
                         const std::string& authorization) const {
  const std::string& shown = authorization.empty() ? authorization_ : authorization;
  if (!shown.empty() && may_show_tokens_) context.AddMetadata(kAuthorizationHeader, shown);
  if (timeout == absl::InfiniteDuration()) return;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
}

absl::StatusOr<v1::GetServerInfoResponse> Connection::GetServerInfo(absl::Duration timeout) const {
  grpc::ClientContext context;
  Prepare(context, timeout);
  v1::GetServerInfoResponse response;
  const grpc::Status status = stub_->GetServerInfo(&context, {}, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

absl::StatusOr<v1::GetStatusResponse> Connection::GetStatus(absl::Duration timeout) const {
  grpc::ClientContext context;
  Prepare(context, timeout);
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, {}, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

std::optional<std::string> Connection::WhyUnreachable(const grpc::Status& status) const {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    if (auto why = WhyNoTls(status.error_message(), server_, encrypted_)) return why;
  }
  if (IsLostConnection(status)) {
    return absl::StrCat("the server at ", server_,
                        " closed the connection: it stopped or was killed");
  }
  if (IsTransportError(status)) {
    return absl::StrCat("no server answers at ", server_,
                        "; start one with `lockstep serve MODEL`, or name another with --server "
                        "HOST:PORT");
  }
  return std::nullopt;
}

absl::Status Connection::Explain(const grpc::Status& status) const {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (const auto why = WhyUnreachable(status)) return absl::Status(code, *why);
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::UNAUTHENTICATED:
      return absl::Status(code, absl::StrCat("the server at ", server_, " refuses: ",
                                             status.error_message(), " (--token-file)"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::Status(code, absl::StrCat(server_, " is not a Lockstep server of this version"));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::Status(code, "the time limit passed before the answer was complete");
    default:
      return absl::Status(code, status.error_message());
  }
}

}  // namespace lockstep
