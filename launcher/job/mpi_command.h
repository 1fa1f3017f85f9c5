// The command line that starts the ranks as one MPI job on this host, and the words mpirun adds to
// what they print.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// mpirun.openmpi or mpirun on $PATH. NOT_FOUND saying how to install it.
absl::StatusOr<std::filesystem::path> FindMpirun();

struct MpiScratch {
  std::filesystem::path files;   // a private directory for mpirun's own files
  std::filesystem::path memory;  // one in memory, for what the ranks share
};

// mpirun and its arguments for world_size ranks of `worker` (program and arguments), all on this
// host.
std::vector<std::string> LocalMpiCommand(const std::filesystem::path& mpirun, int world_size,
                                         const MpiScratch& scratch,
                                         const std::vector<std::string>& worker);

// The environment of this process without what an enclosing MPI or Slurm launch put there: a job
// inside a job would take itself for a rank of the outer one.
std::vector<std::string> JobEnvironment();

// One line of the job's output.
struct JobLine {
  std::optional<int> rank;  // who wrote it; mpirun itself when unset
  std::string text;
};
// Understands --tag-output's "[1,3]<stderr>:text".
JobLine ParseJobLine(absl::string_view line);
// Which rank was killed and how, from mpirun's "... process rank 2 with PID 7 on node a exited on
// signal 9 (Killed).".
struct RankKilled {
  int rank = 0;
  std::string host;
  std::string how;  // "killed by signal 9 (Killed)"
};
std::optional<RankKilled> ParseRankKilled(absl::string_view text);
// mpirun's banners, which say at length what the launcher reports in a line. Its other messages are
// shown.
bool IsMpirunNoise(absl::string_view text);

}  // namespace lockstep
