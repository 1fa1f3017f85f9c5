// File names: the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
#include "kernels/base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = int64_t{1} << 60;

// How a version of cgroups names things. Page cache that can be dropped is counted over the groups
// below, too, as usage is.
struct CgroupNames {
  const char* limit;
  const char* usage;
  const char* active_file;
  const char* inactive_file;
};
constexpr CgroupNames kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_active_file", "total_inactive_file"};
constexpr CgroupNames kVersion2 = {"memory.max", "memory.current", "active_file", "inactive_file"};

// The number in a cgroup's file; none when there is no such file or no limit ("max").
std::optional<int64_t> ReadBytes(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  int64_t bytes = 0;
  if (!(file >> text) || !absl::SimpleAtoi(text, &bytes)) return std::nullopt;
  return bytes;
}

// Reading a checkpoint fills it, and it gives way to whoever needs memory.
int64_t DroppableBytes(const fs::path& group, const CgroupNames& names) {
  std::ifstream stat(group / "memory.stat");
  std::string field;
  int64_t bytes = 0;
  int64_t droppable = 0;
  while (stat >> field >> bytes) {
    if (field == names.active_file || field == names.inactive_file) droppable += bytes;
  }
  return droppable;
}

int64_t AvailableInGroup(const fs::path& group, const CgroupNames& names) {
  const auto limit = ReadBytes(group / names.limit);
  const auto usage = ReadBytes(group / names.usage);
  if (!limit || !usage) return kUnlimited;
  const int64_t held = std::max<int64_t>(0, *usage - DroppableBytes(group, names));
  return std::max<int64_t>(0, *limit - held);
}

// The least that the group and those above it have. Containers may see their own group as the root
// and its path as the host's: what is not there has no say.
int64_t AvailableUpwards(const fs::path& root, fs::path group, const CgroupNames& names) {
  int64_t available = AvailableInGroup(root, names);
  for (; group.has_relative_path(); group = group.parent_path()) {
    available = std::min(available, AvailableInGroup(root / group.relative_path(), names));
  }
  return available;
}

// A line of /proc/self/cgroup is HIERARCHY:CONTROLLERS:PATH; version 2 has no controllers.
int64_t AvailableInGroups(const MemoryFiles& files) {
  std::ifstream groups(files.proc / "self" / "cgroup");
  int64_t available = kUnlimited;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      available = std::min(available, AvailableUpwards(files.cgroups, group, kVersion2));
    } else if (absl::StrContains(controllers, ",memory,")) {
      available = std::min(available, AvailableUpwards(files.cgroups / "memory", group, kVersion1));
    }
  }
  return available;
}

}  // namespace

int64_t AvailableMemoryBytes(const MemoryFiles& files) {
  std::ifstream meminfo(files.proc / "meminfo");
  std::string field;
  int64_t kib = 0;
  int64_t available = kUnlimited;
  for (std::string unit; meminfo >> field >> kib; std::getline(meminfo, unit)) {
    if (field == "MemAvailable:") available = kib * 1024;
  }
  return std::min(available, AvailableInGroups(files));
}

}  // namespace lockstep
