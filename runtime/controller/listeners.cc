#include "runtime/controller/listeners.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "kernels/base/status_macros.h"
#include "runtime/worker/link_limits.h"

namespace lockstep {
namespace {

// A prompt of a million token ids. More would let few strangers fill the memory with messages that
// never end: 128 of them held 0.5 GiB with this limit, and starved the ranks' links with 64 MiB.
constexpr int kMaxRequestBytes = 4 << 20;
// Of all clients' connections together. Beyond it gRPC closes connections rather than growing; a
// call takes about 20 KiB.
constexpr size_t kMaxClientMemoryBytes = size_t{1} << 30;
// Each stream of the reflection service, which alone is synchronous, has a thread while it is open:
// with more streams, new ones get RESOURCE_EXHAUSTED.
constexpr int kMaxReflectionThreads = 16;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kMaxStreamsPerConnection = 4096;
constexpr int kClientKeepaliveMs = 30'000;
constexpr int kClientKeepaliveTimeoutMs = 20'000;
constexpr int kClientMinPingIntervalMs = 5'000;

struct HostPort {
  std::string host;
  int port = 0;
};

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  HostPort parsed;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &parsed.port) || parsed.port < 0 ||
      parsed.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\" is not HOST:PORT (port 0 to 65535) or unix:/path"));
  }
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  parsed.host = std::string(host);
  return parsed;
}

absl::Status CheckAddress(const std::string& address) {
  if (!absl::StartsWith(address, "unix:")) return ParseHostPort(address).status();
  const size_t num_bytes = address.size() - std::strlen("unix:");
  if (num_bytes > 0 && num_bytes < sizeof(sockaddr_un::sun_path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("address \"", address, "\" has a path of ",
                                                 num_bytes, " bytes; allowed are 1 to ",
                                                 sizeof(sockaddr_un::sun_path) - 1));
}

// gRPC does not say why it could not bind: try it by hand and ask the system.
std::string WhyNotBound(const std::string& address) {
  const absl::StatusOr<HostPort> target = ParseHostPort(address);
  if (absl::StartsWith(address, "unix:") || !target.ok()) return "cannot create the socket";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int resolved =
      getaddrinfo(target->host.c_str(), std::to_string(target->port).c_str(), &hints, &found);
  if (resolved != 0) return gai_strerror(resolved);
  std::string why = "cannot bind";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
    if (fd < 0) continue;
    if (bind(fd, each->ai_addr, each->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      why = std::error_code(errno, std::system_category()).message();
    }
    close(fd);
  }
  freeaddrinfo(found);
  return why;
}

void SetCommonOptions(grpc::ServerBuilder& builder) {
  // gRPC 1.51 inflates messages before the call's token is seen, and to any size before it looks at
  // the limit: 0.6 MB of gzip took 0.65 GiB. Either setting alone prevents that; the algorithms'
  // also tells the client (UNIMPLEMENTED).
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // Without this two servers could share a port, each taking half of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Only the reflection service is synchronous: one thread that looks for calls is plenty.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
}

// gRPC's reflection library adds itself to every server of a program that links it.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
                                    return absl::StrContains(plugin->name(), "reflection");
                                  }),
                   plugins->end());
  }
};

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const std::string& address,
                                                       const TlsIdentity* tls) {
  if (tls == nullptr || absl::StartsWith(address, "unix:"))
    return grpc::InsecureServerCredentials();
  return ServerCredentialsOf(*tls);
}

absl::StatusOr<Listening> BuildAndListen(grpc::ServerBuilder& builder,
                                         const std::vector<std::string>& addresses,
                                         const TlsIdentity* tls) {
  Listening listening;
  listening.ports.assign(addresses.size(), 0);
  for (size_t i = 0; i < addresses.size(); ++i) {
    RETURN_IF_ERROR(CheckAddress(addresses[i]));
    builder.AddListeningPort(addresses[i], CredentialsOf(addresses[i], tls), &listening.ports[i]);
  }
  listening.server = builder.BuildAndStart();
  // Bound in order: the first without a port is the one that failed.
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (listening.ports[i] != 0) continue;
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", addresses[i], ": ", WhyNotBound(addresses[i])));
  }
  if (listening.server == nullptr) return absl::InternalError("gRPC refused to start a server");
  return listening;
}

}  // namespace

absl::StatusOr<Listening> ListenForClients(const ClientListener& listener,
                                           const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(false);  // ours tells more than "the process runs"
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  if (!listener.serve_reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  SetCommonOptions(builder);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("clients")
                               .Resize(kMaxClientMemoryBytes)
                               .SetMaxThreads(kMaxReflectionThreads));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kClientKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kClientKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kClientMinPingIntervalMs);
  for (grpc::Service* service : services) builder.RegisterService(service);
  return BuildAndListen(builder, listener.addresses, listener.tls);
}

absl::StatusOr<Listening> ListenForRanks(const std::vector<std::string>& addresses,
                                         const TlsIdentity* tls, absl::Duration silence,
                                         grpc::Service& service) {
  const absl::Duration most = absl::Milliseconds(std::numeric_limits<int>::max());
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<WithoutReflection>());
  SetCommonOptions(builder);
  builder.SetMaxReceiveMessageSize(kLinkMaxMessageBytes);
  builder.SetMaxSendMessageSize(kLinkMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kLinkControllerKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(std::min(silence, most))));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kLinkRankKeepaliveMs / 2);
  builder.RegisterService(&service);
  return BuildAndListen(builder, addresses, tls);
}

std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

absl::StatusOr<PrivateDirectory> PrivateDirectory::Create() {
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  for (const char* parent : {runtime_dir, "/tmp"}) {
    if (parent == nullptr) continue;
    std::string path = absl::StrCat(parent, "/lockstep-XXXXXX");
    if (mkdtemp(path.data()) != nullptr) return PrivateDirectory(std::move(path));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot create a directory for the ranks' socket in /tmp: ",
                   std::error_code(errno, std::system_category()).message()));
}

PrivateDirectory& PrivateDirectory::operator=(PrivateDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

PrivateDirectory::~PrivateDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep
