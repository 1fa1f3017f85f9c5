// What operators call this host.
#pragma once

#include <string>

namespace lockstep {

// Under Slurm the node's name, which may differ from the system's; "this host" where there is none.
std::string HostName();
// The system's alone, by which mpirun knows its own host.
std::string SystemHostName();

}  // namespace lockstep
