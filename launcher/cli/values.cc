#include "launcher/cli/values.h"

#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr int64_t kMaxLength = int64_t{1} << 31;

// Length of the well-formed UTF-8 sequence at the front of bytes, 0 if there is none.
// Source: The Unicode Standard 15, table 3-7.
size_t Utf8SequenceLength(absl::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() < length) return 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  if (at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (at(i) < 0x80 || at(i) > 0xBF) return 0;
  }
  return length;
}

bool IsC1Control(absl::string_view sequence) {
  return sequence.size() == 2 && sequence[0] == '\xC2' && static_cast<uint8_t>(sequence[1]) < 0xA0;
}

}  // namespace

std::string HostPort::ToString() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not HOST:PORT: ", why, " (for example 127.0.0.1:50051)"));
  };
  if (int port = 0; absl::SimpleAtoi(text, &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not HOST:PORT: the host is missing, say 127.0.0.1:", text));
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return refuse("the port is missing");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port_text = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return refuse("an IPv6 address goes in brackets, [::1]:50051");
  }
  if (host.empty()) return refuse("the host is missing");
  int port = 0;
  if (!absl::SimpleAtoi(port_text, &port) || port < 0 || port > 65535) {
    return refuse(absl::StrCat("port '", port_text, "' is not a number from 0 to 65535"));
  }
  return HostPort{std::string(host), port};
}

absl::StatusOr<std::vector<int32_t>> ParseTokenIds(absl::string_view text) {
  absl::string_view list = absl::StripAsciiWhitespace(text);
  if (absl::StartsWith(list, "[") && absl::EndsWith(list, "]")) {
    list = absl::StripAsciiWhitespace(list.substr(1, list.size() - 2));
  }
  if (list.empty()) {
    return absl::InvalidArgumentError("no token ids given (for example 1,403,407)");
  }
  std::vector<int32_t> ids;
  for (absl::string_view part : absl::StrSplit(list, ',')) {
    part = absl::StripAsciiWhitespace(part);
    for (absl::string_view item : absl::StrSplit(part, absl::ByAnyChar(" \t\r\n"))) {
      if (item.empty() && !part.empty()) continue;  // between two spaces, not between two commas
      int32_t id = 0;
      if (!absl::SimpleAtoi(item, &id) || id < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", item, "' of '", text, "' is not a token id (a whole number from 0 on)"));
      }
      ids.push_back(id);
    }
  }
  return ids;
}

absl::StatusOr<LengthRange> ParseLengthRange(absl::string_view text) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, ':');
  LengthRange range;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &range.min) ||
      !absl::SimpleAtoi(ends.back(), &range.max) || range.min < 1 || range.max < range.min ||
      range.max > kMaxLength) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a length: give N or MIN:MAX, from 1 on"));
  }
  return range;
}

absl::StatusOr<std::pair<int32_t, float>> ParseLogitBias(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  int32_t id = 0;
  float bias = 0.0f;
  if (!absl::SimpleAtoi(parts.first, &id) || id < 0 || !absl::SimpleAtof(parts.second, &bias) ||
      !std::isfinite(bias)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not TOKEN_ID:BIAS (for example 42:-100)"));
  }
  return std::pair<int32_t, float>{id, bias};
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<absl::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return absl::StrFormat(unit == 0 || value >= 100.0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string Counted(int64_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string FormatCount(int64_t count) {
  const std::string digits = absl::StrCat(count < 0 ? -count : count);
  std::string grouped = count < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped.push_back(',');
    grouped.push_back(digits[i]);
  }
  return grouped;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1.0) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 60.0) return absl::StrFormat("%.2f s", seconds);
  const int64_t whole = static_cast<int64_t>(seconds);
  return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
}

std::string FormatMilliseconds(double ms) {
  return ms < 100 ? absl::StrFormat("%.3g ms", ms) : absl::StrFormat("%.0f ms", ms);
}

std::string OneLine(absl::string_view text) {
  std::string line(absl::StripAsciiWhitespace(text));
  for (char& c : line) {
    if (absl::ascii_iscntrl(c)) c = ' ';
  }
  return line;
}

std::string TerminalText(absl::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const absl::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    const char c = sequence.front();
    const bool is_control = absl::ascii_iscntrl(c) && c != '\n' && c != '\t';
    absl::StrAppend(&shown,
                    length == 0 || is_control || IsC1Control(sequence) ? kReplacement : sequence);
    text.remove_prefix(sequence.size());
  }
  return shown;
}

std::optional<size_t> FirstInvalidUtf8(absl::string_view text) {
  size_t offset = 0;
  while (offset < text.size()) {
    const size_t length = Utf8SequenceLength(text.substr(offset));
    if (length == 0) return offset;
    offset += length;
  }
  return std::nullopt;
}

std::string ValidUtf8(absl::string_view bytes) {
  std::string valid;
  valid.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = Utf8SequenceLength(bytes);
    absl::StrAppend(&valid, length == 0 ? kReplacement : bytes.substr(0, length));
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return valid;
}

std::string Excerpt(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return OneLine(text);
  absl::string_view head;
  while (true) {
    const size_t length = std::max<size_t>(1, Utf8SequenceLength(text.substr(head.size())));
    if (head.size() + length > max_bytes) break;
    head = text.substr(0, head.size() + length);
  }
  return absl::StrCat(OneLine(head), "...");
}

}  // namespace lockstep
