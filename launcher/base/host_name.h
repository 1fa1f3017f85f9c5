// What operators call this host.
#pragma once

#include <string>

namespace lockstep {

// Under Slurm the node's name, which may differ from the system's; "this host" where there is none.
std::string HostName();

}  // namespace lockstep
