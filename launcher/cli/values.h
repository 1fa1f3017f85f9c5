// Values as people type and read them: addresses, id lists, ranges, sizes, one-line messages. Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;      // [0, 65535]
  std::string ToString() const;
};

// "127.0.0.1:50051", "[::1]:0", "name:80". INVALID_ARGUMENT says what is wrong.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// "1,2, 3", "1 2 3" or "[1,2,3]": token ids, each in [0, 2^31). INVALID_ARGUMENT naming the item.
absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text);

// "128" or "64:256", both ends included.
struct LengthRange {
  int64_t min = 0;
  int64_t max = 0;
};
absl::StatusOr<LengthRange> ParseLengthRange(absl::string_view text);

// "17:0.5" -> token id and bias.
absl::StatusOr<std::pair<int32_t, float>> ParseLogitBias(absl::string_view text);

std::string FormatBytes(int64_t bytes);  // "1.5 GiB"
std::string FormatCount(int64_t count);  // "12,345"
// "1 rank", "2 ranks".
std::string Counted(int64_t count, absl::string_view what);
std::string FormatSeconds(double seconds);  // "85 ms", "1.23 s", "3 min 05 s"
// Three digits at least: "0.75 ms", "66.8 ms", "1571 ms".
std::string FormatMilliseconds(double ms);

// Line breaks and other control characters become spaces: an error is always one line.
std::string OneLine(absl::string_view text);
// For a terminal: control characters other than newline and tab become U+FFFD, so that generated
// text cannot send the terminal commands.
std::string TerminalText(absl::string_view text);
// Byte offset of the first byte that is not part of well-formed UTF-8.
std::optional<size_t> FirstInvalidUtf8(absl::string_view text);
// Every byte a JSON string cannot hold (invalid UTF-8) replaced by U+FFFD.
std::string ValidUtf8(absl::string_view bytes);
// At most max_bytes bytes of text on one line, cut at a character border, with "..." when cut.
std::string Excerpt(absl::string_view text, size_t max_bytes);

}  // namespace lockstep
