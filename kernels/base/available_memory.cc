// File names: the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
#include "kernels/base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

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

int64_t AvailableInGroup(const Cgroup& group) {
  const CgroupNames& names = group.is_version_1 ? kVersion1 : kVersion2;
  const auto limit = ReadBytes(group.directory / names.limit);
  const auto usage = ReadBytes(group.directory / names.usage);
  if (!limit || !usage) return kUnlimited;
  const int64_t held = std::max<int64_t>(0, *usage - DroppableBytes(group.directory, names));
  return std::max<int64_t>(0, *limit - held);
}

}  // namespace

int64_t AvailableMemoryBytes(const SystemFiles& files) {
  std::ifstream meminfo(files.proc / "meminfo");
  std::string field;
  int64_t kib = 0;
  int64_t available = kUnlimited;
  for (std::string unit; meminfo >> field >> kib; std::getline(meminfo, unit)) {
    if (field == "MemAvailable:") available = kib * 1024;
  }
  for (const Cgroup& group : CgroupsOf("memory", files)) {
    available = std::min(available, AvailableInGroup(group));
  }
  return available;
}

}  // namespace lockstep
