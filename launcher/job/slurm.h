// Slurm: the allocation this process runs in, and the command line that starts the ranks over it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/job/hosts.h"
#include "launcher/job/network.h"

namespace lockstep {

struct SlurmAllocation {
  std::string job_id;
  std::vector<HostSlots> hosts;  // a slot per task
  int cpus_per_task = 0;         // 0: not said
};

// From SLURM_* variables of an sbatch or salloc; nothing outside of one. INVALID_ARGUMENT for
// variables that make no sense, FAILED_PRECONDITION in a job step of several tasks, of which each
// would start a server.
absl::StatusOr<std::optional<SlurmAllocation>> FindSlurmAllocation();

// On $PATH. NOT_FOUND.
absl::StatusOr<std::filesystem::path> FindSrun();

// srun and its arguments for world_size ranks of `worker`, placed as SrunEnvironment says.
std::vector<std::string> SrunCommand(const std::filesystem::path& srun,
                                     const SlurmAllocation& allocation, int world_size,
                                     const std::vector<std::string>& worker);

// For it: this process's environment, Open MPI's settings (HostsMpiSettings) and rank_file, which
// holds the host of each rank on a line of its own.
std::vector<std::string> SrunEnvironment(const std::filesystem::path& rank_file,
                                         const std::string& network,
                                         const std::optional<PortRange>& ports);

}  // namespace lockstep
