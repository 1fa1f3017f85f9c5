// The flags that say where `lockstep serve` starts the ranks, and how.
#pragma once

#include <optional>
#include <string>

#include "launcher/cli/command.h"

namespace lockstep {

// How long ranks may take to start, to join and to check their links, unless told.
inline constexpr double kPreflightSeconds = 30.0;
inline constexpr double kGpuPreflightSeconds = 120.0;

struct LaunchFlags {
  std::string hosts;     // "a:8,b:8"
  std::string hostfile;  // Open MPI's syntax
  std::string launcher = "auto";
  std::string rsh_agent;
  std::string network;        // CIDR or interface
  std::string mpi_ports;      // "20000-20031"
  std::string worker_listen;  // HOST:PORT
  bool allow_tp_across_nodes = false;
  std::optional<double> preflight_seconds;
};

void AddLaunchFlags(CLI::App& command, LaunchFlags& flags);

}  // namespace lockstep
