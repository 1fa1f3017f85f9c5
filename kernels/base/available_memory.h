// How much memory this process and its siblings may still take.
#pragma once

#include <cstdint>

namespace lockstep {

// In bytes: what Linux says can be had without swapping, within this process's memory cgroup. A
// very large number where neither is told.
int64_t AvailableMemoryBytes();

}  // namespace lockstep
