// Who can reach an address: this machine alone, or others.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace lockstep {

// address: "HOST:PORT" or "unix:/path". True for Unix sockets and for hosts all of whose addresses
// are loopback's (127.0.0.0/8, ::1). nullopt when the host does not resolve. May ask a name server.
std::optional<bool> IsLocalAddress(const std::string& address);

// What a server listens on, and the flags that say so.
struct Exposure {
  const char* flag;  // "--listen"
  std::string address;
  bool is_permitted = false;  // it is encrypted, or --insecure-listen was said
  const char* tls_flags;      // "--tls-cert and --tls-key"
};
// INVALID_ARGUMENT for an address that others can reach although that is not permitted; UNAVAILABLE
// where its host does not resolve, of which nobody knows that.
absl::Status CheckExposure(const Exposure& exposure);

}  // namespace lockstep
