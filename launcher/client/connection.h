// A client's connection to a server, and gRPC's errors in words that say what to do.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "launcher/cli/command.h"
#include "lockstep/v1/generation.grpc.pb.h"

namespace lockstep {

inline constexpr char kDefaultServer[] = "127.0.0.1:50051";

// The --server flag that all clients share.
void AddServerFlag(CLI::App& command, std::string& server);

// Thread-safe after construction.
class Connection {
 public:
  // server: "HOST:PORT" or a gRPC target such as "unix:/path". Connects on first use.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const std::string& server);

  v1::Generation::Stub& stub() const { return *stub_; }
  const std::string& server() const { return server_; }

  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(absl::Duration timeout) const;
  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout) const;
  // The status with a message for people: a server that is not there, a full queue and so on say
  // what to do.
  absl::Status Explain(const grpc::Status& status) const;

 private:
  Connection(std::string server, std::shared_ptr<grpc::Channel> channel);
  std::string server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Generation::Stub> stub_;
};

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);

}  // namespace lockstep
