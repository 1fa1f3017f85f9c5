#include "launcher/job/hosts.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"

namespace lockstep {
namespace {

constexpr int kMaxSlots = 65536;
constexpr size_t kMaxHosts = 65536;
constexpr int64_t kMaxHostfileBytes = 16 << 20;
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxShownBytes = 80;

absl::Status Refuse(absl::string_view item, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", item.substr(0, kMaxShownBytes), "' is not a host: ", why));
}

absl::Status CheckName(absl::string_view name, absl::string_view item) {
  if (name.empty()) return Refuse(item, "the name is missing (write NAME or NAME:SLOTS)");
  if (name.size() > kMaxNameBytes) return Refuse(item, "its name has more than 255 bytes");
  if (absl::StrContains(name, '@')) {
    return Refuse(item, "name the user for ssh in ~/.ssh/config instead");
  }
  const bool is_plain = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
  if (is_plain && name.front() != '-') return absl::OkStatus();
  return Refuse(item, "a name has letters, digits, '.', '_' and '-', and does not begin with '-'");
}

absl::StatusOr<int> ParseSlots(absl::string_view text, absl::string_view item) {
  int slots = 0;
  if (absl::SimpleAtoi(text, &slots) && slots >= 1 && slots <= kMaxSlots) return slots;
  return Refuse(item, absl::StrCat("its number of slots must be 1 to ", kMaxSlots));
}

// "a" or "a:8".
absl::StatusOr<HostSlots> ParseHost(absl::string_view item) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(item, absl::MaxSplits(':', 1));
  HostSlots host;
  RETURN_IF_ERROR(CheckName(parts.first, item));
  host.name = std::string(parts.first);
  if (absl::StrContains(item, ':')) {
    ASSIGN_OR_RETURN(host.slots, ParseSlots(parts.second, item));
  }
  return host;
}

absl::StatusOr<HostSlots> ParseHostfileLine(absl::string_view line) {
  // "slots = 8" is as good as "slots=8".
  std::string text(line);
  while (absl::StrReplaceAll({{" =", "="}, {"= ", "="}, {"\t=", "="}, {"=\t", "="}}, &text) > 0) {
  }
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  ASSIGN_OR_RETURN(HostSlots host, ParseHost(words.front()));
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    if (field.first == "slots") {
      ASSIGN_OR_RETURN(host.slots, ParseSlots(field.second, line));
    } else if (field.first == "max_slots" || field.first == "max-slots") {
      RETURN_IF_ERROR(ParseSlots(field.second, line).status());
    } else {
      return Refuse(line, absl::StrCat("'", field.first.substr(0, kMaxShownBytes),
                                       "' is not understood; write NAME slots=N"));
    }
  }
  return host;
}

// "01-03,7": 01, 02, 03, 7; numbers are as wide as their range's first.
std::optional<std::vector<std::string>> ExpandRanges(absl::string_view ranges) {
  std::vector<std::string> numbers;
  for (absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    uint32_t first = 0;
    uint32_t last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || last < first ||
        last - first >= kMaxHosts - numbers.size()) {
      return std::nullopt;
    }
    for (uint64_t number = first; number <= last; ++number) {
      std::string digits = absl::StrCat(number);
      const size_t width = std::max(digits.size(), ends.front().size());
      numbers.push_back(std::string(width - digits.size(), '0') + digits);
    }
  }
  return numbers;
}

// One item of a Slurm list, "rack[1-2]n[01,03]": every bracket multiplies the names.
absl::StatusOr<std::vector<std::string>> ExpandNames(absl::string_view item) {
  std::vector<std::string> names = {""};
  for (absl::string_view rest = item; !rest.empty();) {
    const size_t open = std::min(rest.find('['), rest.size());
    const size_t close = std::min(rest.find(']', open), rest.size());
    std::optional<std::vector<std::string>> suffixes = {{""}};
    if (open < rest.size()) suffixes = ExpandRanges(rest.substr(open + 1, close - open - 1));
    if (!suffixes || (open < rest.size() && close == rest.size()) ||
        names.size() * suffixes->size() > kMaxHosts) {
      return Refuse(item, "it is not one of Slurm's node lists");
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& suffix : *suffixes) {
        longer.push_back(absl::StrCat(name, rest.substr(0, open), suffix));
      }
    }
    names = std::move(longer);
    rest.remove_prefix(std::min(close + 1, rest.size()));
  }
  return names;
}

// Commas inside brackets belong to the item.
std::vector<absl::string_view> SplitOutsideBrackets(absl::string_view text) {
  std::vector<absl::string_view> items;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') inside = true;
    if (i < text.size() && text[i] == ']') inside = false;
    if (i < text.size() && (text[i] != ',' || inside)) continue;
    items.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return items;
}

// "8(x2),4": 8, 8, 4.
absl::StatusOr<std::vector<int>> ExpandCounts(absl::string_view text) {
  std::vector<int> counts;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(item, "(x");
    int count = 0;
    int times = 1;
    const bool is_valid =
        absl::SimpleAtoi(parts.front(), &count) && count >= 1 && count <= kMaxSlots &&
        (parts.size() == 1 ||
         (parts.size() == 2 && absl::SimpleAtoi(absl::StripSuffix(parts[1], ")"), &times))) &&
        times >= 1 && counts.size() + static_cast<size_t>(times) <= kMaxHosts;
    if (!is_valid) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text.substr(0, kMaxShownBytes), "' is not a number of tasks per node"));
    }
    counts.insert(counts.end(), static_cast<size_t>(times), count);
  }
  return counts;
}

}  // namespace

absl::StatusOr<std::vector<HostSlots>> ParseHostList(absl::string_view text) {
  std::vector<HostSlots> hosts;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    ASSIGN_OR_RETURN(HostSlots host, ParseHost(absl::StripAsciiWhitespace(item)));
    if (hosts.size() == kMaxHosts) return Refuse(item, absl::StrCat("more than ", kMaxHosts));
    hosts.push_back(std::move(host));
  }
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ParseHostfile(absl::string_view content,
                                                     absl::string_view file) {
  std::vector<HostSlots> hosts;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::StatusOr<HostSlots> host = ParseHostfileLine(line);
    if (host.ok() && hosts.size() == kMaxHosts) host = Refuse(line, "there are too many");
    if (!host.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ", line ", number, ": ", host.status().message()));
    }
    hosts.push_back(*std::move(host));
  }
  if (hosts.empty()) return absl::InvalidArgumentError(absl::StrCat(file, " names no host"));
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ReadHostfile(const std::filesystem::path& file) {
  const auto content = ReadWhole(file, kMaxHostfileBytes);
  if (!content.ok()) {
    return absl::Status(content.status().code(),
                        absl::StrCat("host file: ", content.status().message()));
  }
  return ParseHostfile(*content, file.string());
}

absl::StatusOr<std::vector<HostSlots>> ParseSlurmHosts(absl::string_view node_list,
                                                       absl::string_view tasks_per_node) {
  std::vector<HostSlots> hosts;
  for (absl::string_view item : SplitOutsideBrackets(node_list)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, ExpandNames(item));
    for (const std::string& name : names) {
      RETURN_IF_ERROR(CheckName(name, item));
      if (hosts.size() == kMaxHosts) return Refuse(item, "there are too many");
      hosts.push_back({name, 1});
    }
  }
  ASSIGN_OR_RETURN(const std::vector<int> counts, ExpandCounts(tasks_per_node));
  if (counts.size() != hosts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("Slurm names ", hosts.size(), " nodes, but ",
                                                   counts.size(), " numbers of tasks"));
  }
  for (size_t i = 0; i < hosts.size(); ++i) hosts[i].slots = counts[i];
  return hosts;
}

absl::StatusOr<std::vector<std::string>> PlaceRanks(absl::Span<const HostSlots> hosts,
                                                    int world_size) {
  std::vector<std::string> host_of_rank;
  int64_t offered = 0;
  for (const HostSlots& host : hosts) {
    offered += host.slots;
    const int64_t left = world_size - std::ssize(host_of_rank);
    host_of_rank.insert(host_of_rank.end(),
                        static_cast<size_t>(std::min<int64_t>(left, host.slots)), host.name);
  }
  if (offered >= world_size) return host_of_rank;
  return absl::ResourceExhaustedError(
      absl::StrCat(world_size, " ranks need as many slots, the hosts ", "have ", offered));
}

}  // namespace lockstep
