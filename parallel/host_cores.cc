#include "parallel/host_cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

int NumberIn(const fs::path& file) {
  std::ifstream stream(file);
  int number = 0;
  return stream >> number && number >= 0 ? number : 0;
}

// The number at the end of the name of the first entry that begins with prefix, as in "node1".
int NumberOfEntry(const fs::path& directory, absl::string_view prefix) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view digits = name;
    int number = 0;
    if (absl::ConsumePrefix(&digits, prefix) && absl::SimpleAtoi(digits, &number)) return number;
  }
  return 0;
}

// The id of the cache of the highest level.
int LastLevelCache(const fs::path& caches) {
  int last_level = 0, id = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(caches, error)) {
    const int level = NumberIn(entry.path() / "level");
    if (level <= last_level) continue;
    last_level = level;
    id = NumberIn(entry.path() / "id");
  }
  return id;
}

}  // namespace

std::vector<HostCore> FindHostCores(const std::string& sysfs) {
  std::vector<HostCore> cores;
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &usable)) continue;
    const fs::path about = fs::path(sysfs) / "devices/system/cpu" / absl::StrCat("cpu", cpu);
    cores.push_back({.cpu = cpu,
                     .node = NumberOfEntry(about, "node"),
                     .cache = LastLevelCache(about / "cache"),
                     .core = NumberIn(about / "topology/core_id"),
                     .package = NumberIn(about / "topology/physical_package_id")});
  }
  return cores;
}

std::vector<int> CoresOfRank(std::vector<HostCore> cores, int rank, int num_ranks) {
  const auto place = [](const HostCore& core) {
    return std::tuple(core.package, core.node, core.cache, core.core, core.cpu);
  };
  std::set<std::tuple<int, int, int>> caches;
  for (const HostCore& core : cores) caches.emplace(core.package, core.node, core.cache);
  const auto count = std::ssize(cores);
  if (num_ranks < 2 || count < num_ranks || caches.size() < 2) return {};
  std::sort(cores.begin(), cores.end(),
            [&](const HostCore& a, const HostCore& b) { return place(a) < place(b); });
  std::vector<int> mine;
  for (auto i = count * rank / num_ranks; i < count * (rank + 1) / num_ranks; ++i) {
    mine.push_back(cores[static_cast<size_t>(i)].cpu);
  }
  return mine;
}

absl::Status StayOn(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("sched_setaffinity: ", std::strerror(errno)));
}

}  // namespace lockstep
