#include "launcher/job/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/fd.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

// The numeric form; empty for families other than IP.
std::string Numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  }
  if (bytes == nullptr || ::inet_ntop(address->sa_family, bytes, text, sizeof(text)) == nullptr) {
    return "";
  }
  return text;
}

struct Network {
  std::string interface;  // a name, or empty and then
  uint32_t address = 0;   // in host order
  uint32_t mask = 0;
};

absl::StatusOr<Network> ParseNetwork(absl::string_view text) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is neither a network like 10.0.0.0/24 nor the name of an interface"));
  };
  const std::pair<std::string, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('/', 1));
  if (absl::StrContains(text, '/')) {
    in_addr address = {};
    int bits = 0;
    if (::inet_pton(AF_INET, parts.first.c_str(), &address) != 1 ||
        !absl::SimpleAtoi(parts.second, &bits) || bits < 1 || bits > 32) {
      return refuse();
    }
    const uint32_t mask = ~uint32_t{0} << (32 - bits);
    return Network{"", ntohl(address.s_addr) & mask, mask};
  }
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("._-:@", c);
  });
  if (text.empty() || text.size() >= IFNAMSIZ || text.front() == '-' || !is_plain) return refuse();
  return Network{std::string(text), 0, 0};
}

bool Contains(const Network& network, const ifaddrs& each) {
  if (!network.interface.empty()) return network.interface == each.ifa_name;
  if (each.ifa_addr->sa_family != AF_INET) return false;
  const auto* address = reinterpret_cast<const sockaddr_in*>(each.ifa_addr);
  return (ntohl(address->sin_addr.s_addr) & network.mask) == network.address;
}

struct OwnAddress {
  std::string interface;
  std::string address;
};

// The addresses of this host that satisfy the condition, IPv4 before IPv6.
std::vector<OwnAddress> OwnAddresses(const std::function<bool(const ifaddrs&)>& condition) {
  std::vector<OwnAddress> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) == 0 || !condition(*each)) continue;
      found.push_back({each->ifa_name, Numeric(each->ifa_addr)});
    }
  }
  return found;
}

absl::StatusOr<std::vector<OwnAddress>> AddressesIn(absl::string_view text) {
  ASSIGN_OR_RETURN(const Network network, ParseNetwork(text));
  std::vector<OwnAddress> found =
      OwnAddresses([&](const ifaddrs& each) { return Contains(network, each); });
  if (!found.empty()) return found;
  return absl::NotFoundError(absl::StrCat("this host has no address in the network ", text));
}

}  // namespace

absl::StatusOr<PortRange> ParsePortRange(absl::string_view text) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  PortRange range;
  if (ends.size() == 2 && absl::SimpleAtoi(ends[0], &range.first) &&
      absl::SimpleAtoi(ends[1], &range.last) && range.first >= 1024 && range.last <= 65535 &&
      range.first <= range.last) {
    return range;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a range of ports: give FIRST-LAST, each from 1024 to 65535"));
}

absl::Status CheckNetwork(absl::string_view network) { return ParseNetwork(network).status(); }

absl::StatusOr<std::string> AddressInNetwork(absl::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<OwnAddress> found, AddressesIn(text));
  return found.front().address;
}

absl::StatusOr<std::vector<std::string>> InterfacesInNetwork(absl::string_view text) {
  ASSIGN_OR_RETURN(const std::vector<OwnAddress> found, AddressesIn(text));
  std::vector<std::string> names;
  for (const OwnAddress& each : found) {
    // A label ("eth0:1") names an address; those who look for an interface do not find it.
    if (absl::StrContains(each.interface, ':')) continue;
    if (std::find(names.begin(), names.end(), each.interface) == names.end()) {
      names.push_back(each.interface);
    }
  }
  if (!names.empty()) return names;
  return absl::NotFoundError(
      absl::StrCat("in the network ", text, " this host has addresses with labels only"));
}

absl::StatusOr<std::optional<std::string>> AddressTowards(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int resolved =
      ::getaddrinfo(host.c_str(), "9", &hints, &list);  // any port: nothing is sent
  if (resolved != 0) {
    return absl::NotFoundError(
        absl::StrCat("the host ", host, " has no address: ", ::gai_strerror(resolved)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, &::freeaddrinfo);
  const Fd any(::socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  // Connecting a datagram socket chooses the route and with it the own address.
  if (!any.valid() || ::connect(any.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      ::getsockname(any.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("there is no route to the host ", host, ": ", std::strerror(errno)));
  }
  const std::string target = Numeric(list->ai_addr);
  const std::vector<OwnAddress> own_target =
      OwnAddresses([&](const ifaddrs& each) { return Numeric(each.ifa_addr) == target; });
  if (!own_target.empty() || absl::StartsWith(target, "127.")) {
    return std::nullopt;
  }
  return Numeric(reinterpret_cast<const sockaddr*>(&own));
}

}  // namespace lockstep
