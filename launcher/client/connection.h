// A client's connection to a server, and gRPC's errors in words that say what to do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "launcher/cli/command.h"
#include "lockstep/v1/generation.grpc.pb.h"
#include "runtime/security/tls.h"

namespace lockstep {

inline constexpr char kDefaultServer[] = "127.0.0.1:50051";
inline constexpr char kConnectionGroup[] = "Connection";  // of the flags, in a command's help

// Which server, and how both sides prove who they are.
struct ConnectionFlags {
  std::string server = kDefaultServer;  // "HOST:PORT" or a gRPC target such as "unix:/path"
  TlsFiles tls = {};                    // TLS when any of them is given
  std::string tls_server_name = "";     // empty = the host of `server`
  std::string token_file = "";          // its first token is shown; empty = none
  bool insecure_token = false;          // show the token without TLS to another host
};

// The flags that all clients share.
void AddConnectionFlags(CLI::App& command, ConnectionFlags& flags);

// Thread-safe after construction.
class Connection {
 public:
  // Connects on first use. INVALID_ARGUMENT for an address that is none; FAILED_PRECONDITION when a
  // token would leave this host in clear; what LoadTlsIdentity and ApiTokens::Load say.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionFlags& flags);

  // For calls that end soon.
  v1::Generation::Stub& stub() const { return *stub_; }
  // For one that streams, which holds it until it has ended. A server runs some thousand calls of a
  // TCP connection at a time, and others of that wait: beyond kMostStreams there are further ones,
  // and the first always has room for calls that end soon.
  std::shared_ptr<v1::Generation::Stub> StreamStub() const;
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  const std::string& server() const { return server_; }
  // False where others could read them on their way; then Prepare adds none.
  bool may_show_tokens() const { return may_show_tokens_; }

  // Every call's context needs it: adds the token and the deadline. InfiniteDuration for none.
  // authorization: a header of somebody for whom the call is made; empty = our own token.
  void Prepare(grpc::ClientContext& context, absl::Duration timeout,
               const std::string& authorization = "") const;

  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(absl::Duration timeout) const;
  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout) const;
  // Why there is no answer at all, in words for people: nobody listens, speaks TLS, or goes on;
  // nullopt for what the server says itself.
  std::optional<std::string> WhyUnreachable(const grpc::Status& status) const;
  // The status with a message for people: a server that is not there, a full queue and so on say
  // what to do.
  absl::Status Explain(const grpc::Status& status) const;

 private:
  static constexpr int kMostStreams = 4000;  // of a TCP connection; servers of ours take 4,096

  // Opens a TCP connection of its own, on first use.
  using Dial = std::function<std::shared_ptr<grpc::Channel>()>;
  struct Link {
    std::unique_ptr<v1::Generation::Stub> stub;
    int num_streams = 0;
  };
  struct Links {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<Link>> all ABSL_GUARDED_BY(mutex);
  };

  Connection(const ConnectionFlags& flags, std::string authorization, Dial dial);
  const std::string server_;
  const bool encrypted_;
  const bool may_show_tokens_;
  const std::string authorization_;  // the header's value; empty = none
  const Dial dial_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<Links> links_;    // for streams; of the first, the channel is channel_
  v1::Generation::Stub* stub_ = nullptr;  // the first one's
};

}  // namespace lockstep
