// Opening the controller's two gRPC servers: addresses, limits, keepalive.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "runtime/security/tls.h"

namespace lockstep {

struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::vector<int> ports;  // as bound, one per address; 1 for Unix sockets
};

// addresses: "HOST:PORT" (port 0 = any) or "unix:/path". INVALID_ARGUMENT for one that is neither,
// UNAVAILABLE naming the one that cannot be bound and why. Services must outlive the server.
// tls: null = in clear; Unix sockets always are.
struct ClientListener {
  std::vector<std::string> addresses;
  const TlsIdentity* tls = nullptr;
  // Tells anyone the methods and messages: not subject to API tokens.
  bool serve_reflection = true;
};
absl::StatusOr<Listening> ListenForClients(const ClientListener& listener,
                                           const std::vector<grpc::Service*>& services);
// silence: how long a rank may leave a keepalive ping unanswered before its stream ends.
absl::StatusOr<Listening> ListenForRanks(const std::vector<std::string>& addresses,
                                         const TlsIdentity* tls, absl::Duration silence,
                                         grpc::Service& service);

// "HOST:PORT" with another port.
std::string WithPort(const std::string& address, int port);

// A fresh directory of mode 0700, removed with everything in it when it dies.
class PrivateDirectory {
 public:
  static absl::StatusOr<PrivateDirectory> Create();
  PrivateDirectory(PrivateDirectory&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  PrivateDirectory& operator=(PrivateDirectory&& other) noexcept;
  ~PrivateDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit PrivateDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace lockstep
