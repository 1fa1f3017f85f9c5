// A process that is one rank of an MPI job, from MPI's start to its end. For its main thread.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "parallel/mpi_communicator.h"

namespace lockstep {

// Starts MPI and runs the body; the session's own exchanges wait at most `patience` for late ranks.
// What goes wrong is printed as of this command. Returns the process's exit code, but after an
// error of the body not at all: peers may be waiting for this rank, and all of the job ends.
int RunMpiRank(const char* command, absl::Duration patience,
               const std::function<absl::Status(const MpiSession&)>& body);

// From rank 0's standard input (mpirun and srun forward theirs to it), given to the others over
// MPI. INVALID_ARGUMENT when there is none.
absl::StatusOr<std::string> SecretOfStdin(const MpiSession& session);

// For all threads of this rank, which are started later. place: among the ranks of this host, of
// which gpu_nodes tells as for CoresOfRank. Returns how many cores it keeps to; 0: any, also where
// somebody has bound the ranks already, who knows better.
int KeepToOwnCores(const MpiSession& session, int place, std::span<const int> gpu_nodes);

}  // namespace lockstep
