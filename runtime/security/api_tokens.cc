#include "runtime/security/api_tokens.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "runtime/security/credential_file.h"

namespace lockstep {
namespace {

constexpr absl::string_view kScheme = "Bearer ";

absl::Status CheckToken(absl::string_view token) {
  if (token.size() < ApiTokens::kMinTokenBytes || token.size() > ApiTokens::kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token has ", token.size(), " characters; allowed are ",
                     ApiTokens::kMinTokenBytes, " to ", ApiTokens::kMaxTokenBytes));
  }
  if (!std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError("the token holds a blank or a byte that is not ASCII");
  }
  return absl::OkStatus();
}

}  // namespace

bool EqualInConstantTime(absl::string_view shown, absl::string_view expected) {
  unsigned difference = shown.size() == expected.size() ? 0u : 1u;
  for (size_t i = 0; i < expected.size(); ++i) {
    const char other = i < shown.size() ? shown[i] : '\0';
    difference |= static_cast<unsigned char>(other) ^ static_cast<unsigned char>(expected[i]);
  }
  return difference == 0;
}

absl::StatusOr<ApiTokens> ApiTokens::Parse(absl::string_view text) {
  ApiTokens tokens;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    if (const absl::Status status = CheckToken(line); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", line_number, ": ", status.message()));
    }
    tokens.tokens_.emplace_back(line);
  }
  if (tokens.tokens_.empty()) return absl::InvalidArgumentError("it holds no token");
  return tokens;
}

absl::StatusOr<ApiTokens> ApiTokens::Load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadCredentialFile(path, "token file", FileAccess::kPrivate));
  absl::StatusOr<ApiTokens> tokens = Parse(text);
  if (tokens.ok()) return tokens;
  return absl::InvalidArgumentError(
      absl::StrCat("token file ", path, ": ", tokens.status().message()));
}

bool ApiTokens::Accept(absl::string_view authorization) const {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return false;
  const absl::string_view shown = authorization.substr(kScheme.size());
  bool accepted = false;
  for (const std::string& token : tokens_) accepted |= EqualInConstantTime(shown, token);
  return accepted;
}

std::string BearerOf(absl::string_view token) { return absl::StrCat(kScheme, token); }

}  // namespace lockstep
