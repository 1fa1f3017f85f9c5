// The addresses by which hosts reach each other, as this host's interfaces and routes tell. Reads
// the system's tables; sends nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct PortRange {
  int first = 0;  // [1024, 65535], first <= last
  int last = 0;
};
// "20000-20031". INVALID_ARGUMENT naming the text.
absl::StatusOr<PortRange> ParsePortRange(absl::string_view text);

// "10.0.0.0/24" or an interface's name, as Open MPI takes them. INVALID_ARGUMENT naming the text.
absl::Status CheckNetwork(absl::string_view network);
// This host's address in it. NOT_FOUND when it has none there.
absl::StatusOr<std::string> AddressInNetwork(absl::string_view network);
// The names of this host's interfaces that have one, each once. As above.
absl::StatusOr<std::vector<std::string>> InterfacesInNetwork(absl::string_view network);

// This host's address towards another one, by name or number; nothing when `host` is this host.
// NOT_FOUND when the name has no address, UNAVAILABLE when there is no route.
absl::StatusOr<std::optional<std::string>> AddressTowards(const std::string& host);

}  // namespace lockstep
