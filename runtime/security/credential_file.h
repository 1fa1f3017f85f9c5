// Files that hold keys and tokens: read whole, bounded, and refused when other users may read them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

enum class FileAccess {
  kPublic,   // a certificate: anyone may read it
  kPrivate,  // a key: mode 0600, or 0640 when it belongs to root (how Kubernetes hands it over)
};

// The content of a regular file of at most 1 MiB. Errors begin with `what` and the path ("TLS key
// /etc/k.pem: ..."): NOT_FOUND, UNAVAILABLE (unreadable), FAILED_PRECONDITION (others may read
// it), INVALID_ARGUMENT (empty, too large, not a file).
absl::StatusOr<std::string> ReadCredentialFile(const std::string& path, absl::string_view what,
                                               FileAccess access);

}  // namespace lockstep
