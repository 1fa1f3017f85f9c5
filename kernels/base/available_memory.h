// How much memory this process and its siblings may still take.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep {

// Where Linux tells it; tests make up their own.
struct MemoryFiles {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroups = "/sys/fs/cgroup";
};

// In bytes: what Linux says can be had without swapping, within the limits of this process's memory
// cgroup and of all those above it, whose page cache of files counts as free. A very large number
// where nothing is told.
int64_t AvailableMemoryBytes(const MemoryFiles& files = {});

}  // namespace lockstep
