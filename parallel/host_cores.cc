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

namespace {

bool EveryGpusNodeHasRoom(const std::vector<HostCore>& cores, std::span<const int> gpu_nodes) {
  return std::all_of(gpu_nodes.begin(), gpu_nodes.end(), [&](int node) {
    return std::count_if(cores.begin(), cores.end(), [&](const HostCore& core) {
             return core.node == node;
           }) >= std::count(gpu_nodes.begin(), gpu_nodes.end(), node);
  });
}

}  // namespace

std::vector<int> CoresOfRank(std::vector<HostCore> cores, int rank,
                             std::span<const int> gpu_nodes) {
  std::set<std::tuple<int, int, int>> caches;
  for (const HostCore& core : cores) caches.emplace(core.package, core.node, core.cache);
  const size_t num_usable = cores.size();
  if (num_usable < gpu_nodes.size() || caches.size() < 2) return {};
  int64_t place = rank;
  int64_t num_ranks = std::ssize(gpu_nodes);
  if (EveryGpusNodeHasRoom(cores, gpu_nodes)) {
    const int node = gpu_nodes[static_cast<size_t>(rank)];
    std::erase_if(cores, [&](const HostCore& core) { return core.node != node; });
    place = std::count(gpu_nodes.begin(), gpu_nodes.begin() + rank, node);
    num_ranks = std::count(gpu_nodes.begin(), gpu_nodes.end(), node);
  }
  const auto order = [](const HostCore& core) {
    return std::tuple(core.package, core.node, core.cache, core.core, core.cpu);
  };
  std::sort(cores.begin(), cores.end(),
            [&](const HostCore& a, const HostCore& b) { return order(a) < order(b); });
  std::vector<int> mine;
  const int64_t count = std::ssize(cores);
  for (int64_t i = count * place / num_ranks; i < count * (place + 1) / num_ranks; ++i) {
    mine.push_back(cores[static_cast<size_t>(i)].cpu);
  }
  if (mine.size() == num_usable) mine.clear();
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
