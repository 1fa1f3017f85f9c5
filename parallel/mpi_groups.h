// Making the groups of a grid out of one MPI communicator, for the MPI bodies only (this header
// includes mpi.h).
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_handle.h"
#include "parallel/process_grid.h"

namespace lockstep {

struct MpiGroupSettings {
  MpiOptions options;
  bool may_spin = false;  // the ranks of this host have a core each
  // Polled by long waits; true aborts the group. May be null.
  std::function<bool()> is_over = nullptr;
};

// One group. Two communicators of the same ranks, so that an early collective of a peer is never
// taken for a message. Collective. UNAVAILABLE with MPI's text.
absl::StatusOr<std::unique_ptr<Communicator>> MakeMpiCommunicator(MpiHandle collectives,
                                                                  MpiHandle messages,
                                                                  const MpiGroupSettings& settings);

// The calling rank's groups, out of `job`, a copy of MPI_COMM_WORLD. Collective over it.
// settings.may_spin is found out here. UNAVAILABLE with MPI's text.
absl::StatusOr<RankGroups> MakeGroupsOf(MPI_Comm job, const MpiSession& session,
                                        const ProcessGrid& grid, MpiGroupSettings settings);

// INVALID_ARGUMENT unless the grid's size is the session's.
absl::Status CheckGridFits(const MpiSession& session, const ProcessGrid& grid);

}  // namespace lockstep
