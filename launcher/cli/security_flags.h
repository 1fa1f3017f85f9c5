// Flags for the security of the wires, and their way into options: files are read and checked here,
// before anything starts.
#pragma once

#include <string>
#include <vector>

#include "launcher/cli/command.h"
#include "runtime/controller/controller.h"
#include "runtime/security/tls.h"

namespace lockstep {

// What ranks and controller show each other over TCP: one identity serves both ends.
struct RankTlsFlags {
  TlsFiles files;
  std::string server_name;
};

// The clients' service, and the ranks' as the controller sees it.
struct ServiceSecurityFlags {
  TlsFiles client_tls;
  std::string api_token_file;
  bool insecure_listen = false;
  RankTlsFlags worker_tls;
};

// --PREFIX-cert, --PREFIX-key and --PREFIX-client-ca of a server: the first two or neither.
void AddServerTlsFlags(CLI::App& command, const std::string& prefix, const char* group,
                       TlsFiles& files);
// --allowed-host of what answers HTTP: HttpServerOptions::allowed_hosts.
void AddAllowedHostFlag(CLI::App& command, const char* group, std::vector<std::string>& hosts);
// --allowed-origin: HttpServerOptions::allowed_origins.
CLI::Option* AddAllowedOriginFlag(CLI::App& command, const char* group,
                                  std::vector<std::string>& origins);
void AddServiceSecurityFlags(CLI::App& command, ServiceSecurityFlags& flags);
// --PREFIXtls-cert, --PREFIXtls-key, --PREFIXtls-ca: all or none.
void AddRankTlsFlags(CLI::App& command, const std::string& prefix, RankTlsFlags& flags);

// Errors: what LoadTlsIdentity and ApiTokens::Load say.
absl::Status ApplySecurity(const ServiceSecurityFlags& flags, ControllerOptions& options);
// What others could read or do on the wires as they are set up; one line each.
std::vector<std::string> SecurityWarnings(const ControllerOptions& options);

absl::StatusOr<DialSecurity> RankDialSecurity(const RankTlsFlags& flags);
// The worker's flags for what the controller was given; empty without TLS.
std::vector<std::string> RankTlsArguments(const RankTlsFlags& flags);

}  // namespace lockstep
