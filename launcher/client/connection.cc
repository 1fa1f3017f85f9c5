#include "launcher/client/connection.h"

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

// Prompt log-probabilities of a long prompt are the largest message a server sends.
constexpr int kMaxReceiveBytes = 256 << 20;

bool IsTransportError(const grpc::Status& status) {
  const std::string& message = status.error_message();
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (absl::StrContains(message, "failed to connect") || absl::StrContains(message, "resolv") ||
          absl::StrContains(message, "onnect"));
}

bool IsLostConnection(const grpc::Status& status) {
  const std::string& message = status.error_message();
  return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
         (absl::StrContains(message, "Socket closed") || absl::StrContains(message, "reset") ||
          absl::StrContains(message, "GOAWAY"));
}

}  // namespace

void AddServerFlag(CLI::App& command, std::string& server) {
  server = kDefaultServer;
  command.add_option("--server", server, "address of the server")
      ->type_name("HOST:PORT")
      ->envname("LOCKSTEP_SERVER")
      ->capture_default_str()
      ->group("Connection");
}

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
}

Connection::Connection(std::string server, std::shared_ptr<grpc::Channel> channel)
    : server_(std::move(server)),
      channel_(std::move(channel)),
      stub_(v1::Generation::NewStub(channel_)) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const std::string& server) {
  if (!absl::StartsWith(server, "unix:")) RETURN_IF_ERROR(ParseHostPort(server).status());
  grpc::ChannelArguments arguments;
  // A proxy set for the web must not swallow a connection to a machine next door.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetMaxSendMessageSize(-1);
  return std::unique_ptr<Connection>(new Connection(
      server, grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments)));
}

absl::StatusOr<v1::GetServerInfoResponse> Connection::GetServerInfo(absl::Duration timeout) const {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::GetServerInfoResponse response;
  const grpc::Status status = stub_->GetServerInfo(&context, {}, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

absl::StatusOr<v1::GetStatusResponse> Connection::GetStatus(absl::Duration timeout) const {
  grpc::ClientContext context;
  SetTimeout(context, timeout);
  v1::GetStatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, {}, &response);
  if (!status.ok()) return Explain(status);
  return response;
}

absl::Status Connection::Explain(const grpc::Status& status) const {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (IsLostConnection(status)) {
    return absl::Status(code, absl::StrCat("the server at ", server_,
                                           " closed the connection: it stopped or was killed"));
  }
  if (IsTransportError(status)) {
    return absl::Status(code, absl::StrCat("no server answers at ", server_,
                                           "; start one with `lockstep serve MODEL`, or name "
                                           "another with --server HOST:PORT"));
  }
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::Status(code, absl::StrCat(server_, " is not a Lockstep server of this version"));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::Status(code, "the time limit (--timeout) passed before the answer was complete");
    default:
      return absl::Status(code, status.error_message());
  }
}

}  // namespace lockstep
