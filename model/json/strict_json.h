// Strict JSON (RFC 8259) from files that others wrote: nothing is accepted that two parsers could
// read differently.
//
// Pure functions, any thread. Refused: duplicate names, nesting deeper than max_depth, a byte order
// mark, NUL bytes, invalid UTF-8, anything after the value.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Untrusted text for a one-line error: in quotes, escaped, cut after 120 bytes.
std::string Quoted(std::string_view text);
// A JSON value likewise, as it was written: 3, "gelu", {"rope_type":"yarn"}.
std::string QuotedJson(const nlohmann::json& value);

// INVALID_ARGUMENT saying what is wrong and at which byte; the caller puts the file's name in
// front.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, int max_depth = 16);

// The same with names in the order of the text. One is found by looking through all of its
// object's, of which there may be no more than this.
inline constexpr size_t kMaxOrderedNames = 1024;
absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedJson(std::string_view text,
                                                              int max_depth = 16);
// Only that field of the object that text is, null when it has none: what else is there may be of
// any size, and is not checked but for the grammar. max_depth: within the field.
absl::StatusOr<nlohmann::ordered_json> ParseStrictOrderedField(std::string_view text,
                                                               std::string_view field,
                                                               int max_depth = 16);

// Runs handler over text (for documents too large to build). A handler returns false to stop and
// keeps its own error; errors of the grammar itself come back as Status. handler must derive from
// nlohmann::json_sax<nlohmann::json>.
absl::Status SaxParseStrictJson(std::string_view text, nlohmann::json_sax<nlohmann::json>& handler);

// The file that stands for another one in a repository cloned without Git LFS: a few lines, for
// which the message is kLfsPointer (git-lfs.com, docs/spec.md).
bool IsLfsPointer(std::string_view text);
inline constexpr char kLfsPointer[] = "is a Git LFS pointer, not the file itself: run git lfs pull";

// What a handler's parse_error was given, as one line.
absl::Status JsonSyntaxError(std::size_t position, std::string_view what);

}  // namespace lockstep
