// The command line that starts the ranks as one MPI job, on this host or over several, and the
// words that mpirun and srun add to what the ranks print.
#pragma once

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/job/network.h"

namespace lockstep {

// The first of these programs that is on $PATH.
std::optional<std::filesystem::path> FindProgram(std::initializer_list<const char*> names);
// mpirun.openmpi or mpirun on $PATH. NOT_FOUND saying how to install it; FAILED_PRECONDITION where
// it could not run.
absl::StatusOr<std::filesystem::path> FindMpirun();
// FAILED_PRECONDITION for a host's name that mpirun cannot take: Open MPI 4.1 dies ("stack smashing
// detected") where it has more than 56 characters before its first dot.
absl::Status CheckMpiHostName(absl::string_view name);

// For JobSpec: of SIGTERM, if it comes while it starts its ranks, Open MPI 4.1's mpirun hangs now
// and then, and stays with the ranks that it has. Without it ranks end by themselves
// (EndWithParent), as do its daemons on other hosts, whose connections break; its files are in the
// launcher's.
inline constexpr int kMpirunEndSignal = SIGKILL;

// That Open MPI 4.1 takes of MpiScratch::memory for each of several ranks: btl_vader_segment_size.
inline constexpr int64_t kMpiSegmentBytes = (4 << 20) + 4096;

struct MpiScratch {
  std::filesystem::path files;   // a private directory for mpirun's own files
  std::filesystem::path memory;  // one in memory, for what the ranks share
};

// mpirun and its arguments for world_size ranks of `worker` (program and arguments), all on this
// host. ports: where mpirun listens, any by default.
std::vector<std::string> LocalMpiCommand(const std::filesystem::path& mpirun, int world_size,
                                         const MpiScratch& scratch,
                                         const std::vector<std::string>& worker,
                                         const std::optional<PortRange>& ports = std::nullopt);

struct HostsLaunch {
  std::filesystem::path rank_file;  // the host of each rank on a line of its own
  int world_size = 1;
  std::string rsh_agent;           // empty: ssh
  std::string network;             // of MPI's connections; empty: what Open MPI chooses
  std::optional<PortRange> ports;  // of MPI's listeners; empty: any
};

// The same over hosts. What the environment sets (OMPI_MCA_...) is not set again; what it tells
// NCCL (NCCL_...) and the plugin (LOCKSTEP_CUDA_...) ranks hear on every host.
std::vector<std::string> HostsMpiCommand(const std::filesystem::path& mpirun,
                                         const HostsLaunch& launch,
                                         const std::vector<std::string>& worker);

// Open MPI's settings for ranks on several hosts, by name, without those that the environment
// makes: TCP between hosts, shared memory inside.
std::map<std::string, std::string> HostsMpiSettings(const std::string& network,
                                                    const std::optional<PortRange>& ports);

// The environment of this process without what an enclosing MPI or Slurm launch put there: a job
// inside a job would take itself for a rank of the outer one. `added` stands instead of what is
// there.
std::vector<std::string> JobEnvironment(const std::map<std::string, std::string>& added = {});
// For srun: as above, but with this allocation.
std::vector<std::string> SlurmJobEnvironment(const std::map<std::string, std::string>& added);

}  // namespace lockstep
