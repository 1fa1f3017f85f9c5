// How much memory this process and its siblings may still take.
#pragma once

#include <cstdint>

#include "kernels/base/cgroups.h"

namespace lockstep {

// In bytes: what Linux says can be had without swapping, within the limits of this process's memory
// cgroup and of all those above it, whose page cache of files counts as free. A very large number
// where nothing is told.
int64_t AvailableMemoryBytes(const SystemFiles& files = {});

}  // namespace lockstep
