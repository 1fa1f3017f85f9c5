// Which hosts' names requests to a loopback address may be for.
//
// A page from elsewhere can have its own name resolved to 127.0.0.1; a browser then lets it read
// what a server there answers, as if it were the page's own ("DNS rebinding"). Its requests tell
// that name as their Host. Attackers have names with a dot: addresses, the machine's own name and
// those without a dot (proxies' and containers') are let through.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lockstep {

class HostNames {
 public:
  // permitted: names besides; "*" is all of them.
  explicit HostNames(std::vector<std::string> permitted);

  // host: a Host header's value, with or without a port.
  bool Has(absl::string_view host) const;

 private:
  std::vector<std::string> permitted_;  // in lower case, without ports
};

}  // namespace lockstep
