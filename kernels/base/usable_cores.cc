#include "kernels/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

namespace lockstep {
namespace {

// Microseconds in every period; none: "max" (version 2), -1 (version 1), or no such file.
struct Quota {
  double us = 0;
  double period_us = 0;
};
std::optional<Quota> QuotaOf(const Cgroup& group) {
  Quota quota;
  bool is_read = false;
  if (group.is_version_1) {
    is_read = (std::ifstream(group.directory / "cpu.cfs_quota_us") >> quota.us) &&
              (std::ifstream(group.directory / "cpu.cfs_period_us") >> quota.period_us);
  } else {
    is_read = !!(std::ifstream(group.directory / "cpu.max") >> quota.us >> quota.period_us);
  }
  if (!is_read || !(quota.us > 0) || !(quota.period_us > 0)) return std::nullopt;
  return quota;
}

}  // namespace

std::optional<int> CoresOfQuota(const SystemFiles& files) {
  std::optional<int> fewest;
  for (const Cgroup& group : CgroupsOf("cpu", files)) {
    const std::optional<Quota> quota = QuotaOf(group);
    if (!quota) continue;
    const double cores = std::ceil(std::min(quota->us / quota->period_us, 1e6));
    fewest = std::min(fewest.value_or(1000000), static_cast<int>(cores));
  }
  return fewest;
}

int NumUsableCores(const SystemFiles& files) {
  cpu_set_t usable;
  const int count = sched_getaffinity(0, sizeof(usable), &usable) == 0
                        ? CPU_COUNT(&usable)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(std::min(count, CoresOfQuota(files).value_or(count)), 1);
}

}  // namespace lockstep
