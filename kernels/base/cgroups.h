// The control groups of this process, which limit what it may use of its machine.
//
// Source: the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/cgroups.rst; cgroups(7).
#pragma once

#include <filesystem>
#include <vector>

namespace lockstep {

// Where Linux tells of them; tests make up their own.
struct SystemFiles {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroups = "/sys/fs/cgroup";
};

struct Cgroup {
  std::filesystem::path directory;
  bool is_version_1 = false;
};

// That which this process is in for a controller ("memory", "cpu"), and all above it: each has a
// say. Containers may see their own group as the root and its path as the host's: some need not be
// there.
std::vector<Cgroup> CgroupsOf(const char* controller, const SystemFiles& files);

}  // namespace lockstep
