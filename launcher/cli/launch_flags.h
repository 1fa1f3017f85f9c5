// The flags that say where `lockstep serve` starts the ranks, and how.
#pragma once

#include <string>

#include "launcher/cli/command.h"

namespace lockstep {

struct LaunchFlags {
  std::string hosts;     // "a:8,b:8"
  std::string hostfile;  // Open MPI's syntax
  std::string launcher = "auto";
  std::string rsh_agent;
  std::string network;        // CIDR or interface
  std::string mpi_ports;      // "20000-20031"
  std::string worker_listen;  // HOST:PORT
  bool allow_tp_across_nodes = false;
  double preflight_seconds = 30.0;
};

void AddLaunchFlags(CLI::App& command, LaunchFlags& flags);

}  // namespace lockstep
