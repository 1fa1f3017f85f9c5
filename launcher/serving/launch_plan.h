// Where the ranks of a launch run and what starts them: from flags and environment to the command
// line of an epoch's job.
//
// PlanLaunch checks everything that is known before a process starts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/launch_flags.h"
#include "launcher/job/job_supervisor.h"
#include "launcher/job/kept_program.h"
#include "launcher/job/network.h"
#include "launcher/job/runtime_dir.h"
#include "launcher/job/slurm.h"
#include "parallel/gpu_places.h"
#include "parallel/process_grid.h"

namespace lockstep {

struct LaunchPlan {
  enum class Kind { kThisHost, kHosts, kSlurm };
  Kind kind = Kind::kThisHost;
  std::filesystem::path starter;          // mpirun or srun
  int world_size = 1;                     // of a replica
  std::vector<std::string> host_of_rank;  // of all replicas, one after the other
  bool uses_this_host = true;             // some rank runs where the launcher does
  // Where the controller listens for ranks: HOST:PORT, or empty for a Unix socket.
  std::string worker_listen;
  std::string rsh_agent;
  std::string network;
  std::optional<PortRange> ports;
  std::optional<SlurmAllocation> slurm;

  int num_hosts() const;
  // Ranks of the host that has most of them, of all replicas.
  int max_ranks_per_host() const;
  std::vector<std::string> HostsOf(int replica) const;
  // Of its ranks, among those of all replicas on their hosts.
  std::vector<HostPlace> PlacesOf(int replica) const;
  // Each replica's mpirun needs ports of its own.
  std::optional<PortRange> PortsOf(int replica) const;
};

// INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED (slots), FAILED_PRECONDITION (a tensor parallel
// group across hosts): one line each, with advice.
absl::StatusOr<LaunchPlan> PlanLaunch(const LaunchFlags& flags, const ProcessGrid& grid,
                                      int num_replicas);

// What a launch has of its own on this host. Outlives its jobs.
struct LaunchFiles {
  RuntimeDir directory;
  RuntimeDir memory;
  KeptProgram program;
};

// The job of a replica, whose ranks run this program with worker_arguments and read `secret`.
// UNAVAILABLE when a file of the launch cannot be written.
absl::StatusOr<JobSpec> MakeJob(const LaunchPlan& plan, const LaunchFiles& files, int replica,
                                const std::vector<std::string>& worker_arguments,
                                const std::string& secret);

}  // namespace lockstep
