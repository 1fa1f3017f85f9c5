#include "launcher/cli/security_flags.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/cli/add_command.h"
#include "runtime/security/reachability.h"

namespace lockstep {
namespace {

std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

}  // namespace

void AddServerTlsFlags(CLI::App& command, const std::string& prefix, const char* group,
                       TlsFiles& files) {
  const auto add = [&](const char* name, std::string& file, const char* help) {
    return command.add_option(absl::StrCat("--", prefix, name), file, help)
        ->type_name("FILE")
        ->group(group);
  };
  auto* certificate = add("-cert", files.certificate,
                          "this server's certificate chain (PEM): clients must use TLS");
  auto* key = add("-key", files.key, "its key (PEM, mode 0600, no pass phrase)");
  certificate->needs(key);
  key->needs(certificate);
  add("-client-ca", files.authority,
      "admit only clients with a certificate that these (PEM) signed")
      ->needs(certificate);
}

void AddAllowedHostFlag(CLI::App& command, const char* group, std::vector<std::string>& hosts) {
  command
      .add_option("--allowed-host", hosts,
                  "another name by which HTTP clients may call a listener on loopback without TLS "
                  "(their Host header); * = any, also web pages' (default: this host's name, "
                  "localhost, addresses, names without a dot)")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group(group);
}

CLI::Option* AddAllowedOriginFlag(CLI::App& command, const char* group,
                                  std::vector<std::string>& origins) {
  const auto check = [](const std::string& origin) -> std::string {
    const size_t scheme = origin.find("://");
    const bool is_origin = scheme != std::string::npos && scheme > 0 &&
                           scheme + 3 < origin.size() &&
                           origin.find_first_of("/?# ", scheme + 3) == std::string::npos;
    if (is_origin || origin == "*") return "";
    return absl::StrCat("must be SCHEME://HOST[:PORT] without a path, or *, not ", origin);
  };
  return command
      .add_option("--allowed-origin", origins,
                  "where web pages may come from whose scripts ask this server and read what it "
                  "answers, as https://chat.example.com; * = anywhere (default: none may)")
      ->type_name("ORIGIN")
      ->allow_extra_args(false)
      ->check(check, "")
      ->group(group);
}

void AddServiceSecurityFlags(CLI::App& command, ServiceSecurityFlags& flags) {
  const char* group = "Security of the clients' service";
  AddServerTlsFlags(command, "tls", group, flags.client_tls);
  command
      .add_option("--api-token-file", flags.api_token_file,
                  "one token per line (mode 0600); every call but health's must show one")
      ->type_name("FILE")
      ->group(group);
  command
      .add_flag(
          "--insecure-listen", flags.insecure_listen,
          "let --listen, --http-listen and --metrics-listen be reached from other hosts without "
          "TLS")
      ->group(group);
  AddRankTlsFlags(command, "worker-", flags.worker_tls);
}

void AddRankTlsFlags(CLI::App& command, const std::string& prefix, RankTlsFlags& flags) {
  const char* group = "Security of the ranks' service (TCP)";
  const auto add = [&](const char* name, std::string& value, const char* help) {
    return command.add_option(absl::StrCat("--", prefix, name), value, help)
        ->type_name("FILE")
        ->group(group);
  };
  auto* certificate =
      add("tls-cert", flags.files.certificate, "certificate chain that this end shows (PEM)");
  auto* key = add("tls-key", flags.files.key, "its key (PEM, mode 0600, no pass phrase)");
  auto* authority = add("tls-ca", flags.files.authority, "what signed the other end's certificate");
  certificate->needs(key)->needs(authority);
  key->needs(certificate);
  authority->needs(certificate);
  command
      .add_option(absl::StrCat("--", prefix, "tls-server-name"), flags.server_name,
                  "name in the controller's certificate (default: the host that ranks dial)")
      ->type_name("NAME")
      ->needs(certificate)
      ->group(group);
}

absl::Status ApplySecurity(const ServiceSecurityFlags& flags, ControllerOptions& options) {
  options.insecure_listen = flags.insecure_listen;
  if (!flags.client_tls.empty()) {
    ASSIGN_OR_RETURN(options.client_tls, LoadTlsIdentity(flags.client_tls));
  }
  if (!flags.worker_tls.files.empty()) {
    ASSIGN_OR_RETURN(options.worker_tls, LoadTlsIdentity(flags.worker_tls.files));
  }
  if (!flags.api_token_file.empty()) {
    ASSIGN_OR_RETURN(options.api_tokens, ApiTokens::Load(flags.api_token_file));
  }
  return absl::OkStatus();
}

std::vector<std::string> SecurityWarnings(const ControllerOptions& options) {
  std::vector<std::string> warnings;
  if (!IsLocalAddress(options.listen).value_or(false)) {
    if (!options.client_tls && options.insecure_listen) {  // else it is refused
      warnings.push_back(
          absl::StrCat("clients' prompts, texts and tokens cross the network in clear (",
                       options.listen, " without TLS)"));
    } else if (options.client_tls && options.client_tls->authority.empty() && !options.api_tokens) {
      warnings.push_back(
          absl::StrCat("anyone who reaches ", options.listen,
                       " may use it: --tls-client-ca or --api-token-file would ask"));
    }
  }
  for (const std::string& address : options.worker_listen) {
    if (options.worker_tls || IsLocalAddress(address).value_or(false)) continue;
    warnings.push_back(
        absl::StrCat("ranks' secret, prompts and tokens cross the network in clear (", address,
                     " without --worker-tls-cert)"));
  }
  return warnings;
}

absl::StatusOr<DialSecurity> RankDialSecurity(const RankTlsFlags& flags) {
  DialSecurity security;
  if (flags.files.empty()) return security;
  ASSIGN_OR_RETURN(security.tls, LoadTlsIdentity(flags.files));
  security.server_name = flags.server_name;
  return security;
}

std::vector<std::string> RankTlsArguments(const RankTlsFlags& flags) {
  if (flags.files.empty()) return {};
  std::vector<std::string> arguments = {"--tls-cert", Absolute(flags.files.certificate),
                                        "--tls-key",  Absolute(flags.files.key),
                                        "--tls-ca",   Absolute(flags.files.authority)};
  if (!flags.server_name.empty()) {
    arguments.insert(arguments.end(), {"--tls-server-name", flags.server_name});
  }
  return arguments;
}

}  // namespace lockstep
