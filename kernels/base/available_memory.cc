#include "kernels/base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"

namespace lockstep {
namespace {

// The number in a cgroup's file; none when there is no such file or no limit ("max").
std::optional<int64_t> ReadBytes(const char* path) {
  std::ifstream file(path);
  std::string text;
  int64_t bytes = 0;
  if (!(file >> text) || !absl::SimpleAtoi(text, &bytes)) return std::nullopt;
  return bytes;
}

}  // namespace

int64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string field;
  int64_t kib = 0;
  int64_t available = int64_t{1} << 60;
  for (std::string unit; meminfo >> field >> kib; std::getline(meminfo, unit)) {
    if (field == "MemAvailable:") available = kib * 1024;
  }
  const auto limit = ReadBytes("/sys/fs/cgroup/memory.max");
  const auto used = ReadBytes("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return available;
  return std::min(available, std::max<int64_t>(0, *limit - *used));
}

}  // namespace lockstep
