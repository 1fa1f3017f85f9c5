#include "runtime/security/reachability.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lockstep {
namespace {

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& ip4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(ip4.sin_addr.s_addr) >> 24 == 127;
  }
  if (address.sa_family != AF_INET6) return false;
  const in6_addr& ip6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&ip6) || (IN6_IS_ADDR_V4MAPPED(&ip6) && ip6.s6_addr[12] == 127);
}

}  // namespace

std::optional<bool> IsLocalAddress(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  absl::string_view host = absl::string_view(address).substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  // As whoever listens resolves it: "*" is nothing without the flag, and everything with it.
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (::getaddrinfo(std::string(host).c_str(), "1", &hints, &found) != 0) return std::nullopt;
  bool local = true;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    local = local && IsLoopback(*each->ai_addr);
  }
  ::freeaddrinfo(found);
  return local;
}

absl::Status CheckExposure(const Exposure& exposure) {
  if (exposure.is_permitted) return absl::OkStatus();
  const std::optional<bool> is_local = IsLocalAddress(exposure.address);
  if (!is_local) {  // yet: a name server may answer later
    return absl::UnavailableError(
        absl::StrCat(exposure.flag, " \"", exposure.address, "\": no such host"));
  }
  if (*is_local) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "other hosts can reach ", exposure.flag, " ", exposure.address, " without encryption: give ",
      exposure.tls_flags,
      ", listen on 127.0.0.1 behind a proxy, or say --insecure-listen if the network is private"));
}

}  // namespace lockstep
