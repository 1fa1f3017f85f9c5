// API tokens: who shows one of them may use the service. Immutable, so thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// True when both are equal; takes the same time wherever they differ.
bool EqualInConstantTime(absl::string_view shown, absl::string_view expected);

class ApiTokens {
 public:
  static constexpr size_t kMinTokenBytes = 16;
  static constexpr size_t kMaxTokenBytes = 4096;

  // One token per line; blank lines and lines that begin with '#' are skipped. INVALID_ARGUMENT
  // naming the line that is too short, too long or holds other than printable ASCII without
  // blanks, or that there is no token. Tokens are never part of an error.
  static absl::StatusOr<ApiTokens> Parse(absl::string_view text);
  // Of a file that nobody else may read (mode 0600).
  static absl::StatusOr<ApiTokens> Load(const std::string& path);

  // authorization: the value of that header, "Bearer TOKEN" (RFC 6750, section 2.1). Every token
  // is compared, whichever fits.
  bool Accept(absl::string_view authorization) const;

  size_t size() const { return tokens_.size(); }
  // The first one: what a client shows.
  const std::string& front() const { return tokens_.front(); }

 private:
  std::vector<std::string> tokens_;  // not empty
};

// The header of a request that shows this token.
inline constexpr char kAuthorizationHeader[] = "authorization";
std::string BearerOf(absl::string_view token);

}  // namespace lockstep
