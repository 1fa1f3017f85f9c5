// Who can reach an address: this machine alone, or others.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

// address: "HOST:PORT" or "unix:/path". True for Unix sockets and for hosts all of whose addresses
// are loopback's (127.0.0.0/8, ::1). nullopt when the host does not resolve. May ask a name server.
std::optional<bool> IsLocalAddress(const std::string& address);

}  // namespace lockstep
