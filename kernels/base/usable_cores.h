// How many processors this process has.
#pragma once

#include <optional>

#include "kernels/base/cgroups.h"

namespace lockstep {

// Those whose time the CPU quota of its cgroups comes to (docker --cpus, limits of Kubernetes),
// rounded up; nothing without one.
std::optional<int> CoresOfQuota(const SystemFiles& files = {});

// Those that its threads may run on (sched_setaffinity(2): taskset, cpusets of containers, Slurm
// and systemd), of which std::thread::hardware_concurrency knows nothing in some C libraries, and
// no more than CoresOfQuota. At least 1.
int NumUsableCores(const SystemFiles& files = {});

}  // namespace lockstep
