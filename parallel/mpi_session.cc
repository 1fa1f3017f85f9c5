#include <mpi.h>

#include <cstdlib>

#include "parallel/mpi_communicator.h"

namespace lockstep {

absl::StatusOr<MpiSession> MpiSession::Start(int* argc, char*** argv) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0) return absl::FailedPreconditionError("MPI is already initialised");
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    return absl::FailedPreconditionError("MPI_Init_thread failed");
  }
  MpiSession session;
  session.active_ = true;
  if (provided < MPI_THREAD_FUNNELED) {
    return absl::FailedPreconditionError("this MPI does not support MPI_THREAD_FUNNELED");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &session.rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &session.world_size_);
  return session;
}

MpiSession::MpiSession(MpiSession&& other) noexcept
    : active_(other.active_), rank_(other.rank_), world_size_(other.world_size_) {
  other.active_ = false;
}

MpiSession::~MpiSession() {
  if (active_) MPI_Finalize();
}

void MpiSession::AbortJob(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();  // MPI_Abort does not return
}

}  // namespace lockstep
