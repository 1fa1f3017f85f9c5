#include "launcher/http/host_names.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "launcher/base/host_name.h"

namespace lockstep {
namespace {

std::string WithoutPort(absl::string_view host) {
  const size_t colon = host.rfind(':');
  const bool has_port = colon != absl::string_view::npos && host.find(']', colon) == host.npos &&
                        (host[0] == '[' || host.find(':') == colon);
  std::string name = absl::AsciiStrToLower(has_port ? host.substr(0, colon) : host);
  if (absl::EndsWith(name, ".")) name.pop_back();
  return name;
}

bool IsAddress(const std::string& name) {
  in_addr v4;
  return absl::StartsWith(name, "[") || ::inet_pton(AF_INET, name.c_str(), &v4) == 1;
}

}  // namespace

HostNames::HostNames(std::vector<std::string> permitted) : permitted_(std::move(permitted)) {
  permitted_.push_back(SystemHostName());
  for (std::string& name : permitted_) name = WithoutPort(name);
}

bool HostNames::Has(absl::string_view host) const {
  const std::string name = WithoutPort(host);
  if (name.find('.') == std::string::npos || IsAddress(name)) return true;
  // Names that nobody can register: of this host (RFC 6761), and those that ICANN keeps for private
  // networks, as Docker's host.docker.internal.
  return absl::EndsWith(name, ".localhost") || absl::EndsWith(name, ".internal") ||
         std::any_of(permitted_.begin(), permitted_.end(), [&](const std::string& permitted) {
           return permitted == "*" || permitted == name;
         });
}

}  // namespace lockstep
