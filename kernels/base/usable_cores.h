// How many processors this process has.
#pragma once

namespace lockstep {

// Those that its threads may run on (sched_setaffinity(2): taskset, cpusets of containers, Slurm
// and systemd), of which std::thread::hardware_concurrency knows nothing in some C libraries. At
// least 1.
int NumUsableCores();

}  // namespace lockstep
