#include "parallel/mpi_groups.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "parallel/hand_over.h"
#include "parallel/polite_wait.h"
#include "parallel/token_split.h"

namespace lockstep {
namespace {

absl::StatusOr<MpiHandle> Split(MPI_Comm parent, int color, int key) {
  MPI_Comm comm = MPI_COMM_NULL;
  RETURN_IF_ERROR(FromMpi(MPI_Comm_split(parent, color, key, &comm), "MPI_Comm_split"));
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return MpiHandle(comm);
}

struct GroupPlace {
  int color = 0;  // the same in all of the group
  int rank = 0;
  int size = 1;
};

absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(MPI_Comm job, const GroupPlace& place,
                                                        const MpiGroupSettings& settings) {
  ASSIGN_OR_RETURN(MpiHandle collectives, Split(job, place.color, place.rank));
  ASSIGN_OR_RETURN(MpiHandle messages, Split(job, place.color, place.rank));
  if (place.size == 1) return MakeSelfCommunicator();
  return MakeMpiCommunicator(std::move(collectives), std::move(messages), settings);
}

absl::StatusOr<std::vector<int>> NodesOfRanks(MPI_Comm job, const MpiSession& session) {
  const int mine = session.node();
  std::vector<int> nodes(static_cast<size_t>(session.world_size()));
  RETURN_IF_ERROR(
      FromMpi(MPI_Allgather(&mine, 1, MPI_INT, nodes.data(), 1, MPI_INT, job), "MPI_Allgather"));
  return nodes;
}

}  // namespace

absl::Status CheckGridFits(const MpiSession& session, const ProcessGrid& grid) {
  if (grid.world_size() == session.world_size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("tp %d x pp %d needs %d ranks; the MPI job has %d", grid.tp(), grid.pp(),
                      grid.world_size(), session.world_size()));
}

absl::StatusOr<RankGroups> MakeGroupsOf(MPI_Comm job, const MpiSession& session,
                                        const ProcessGrid& grid, MpiGroupSettings settings) {
  const int64_t largest = settings.options.max_message_bytes;
  LS_CHECK(largest >= 1 && largest <= INT32_MAX);
  SharpenSleepOfThisThread();
  const int stage = grid.stage_of(session.rank());
  const int tp_rank = grid.tp_rank_of(session.rank());
  settings.may_spin = session.num_ranks_on_node() <= session.num_cores_on_node();  // a core each
  RankGroups groups;
  ASSIGN_OR_RETURN(groups.tp, MakeGroup(job, {stage, tp_rank, grid.tp()}, settings));
  ASSIGN_OR_RETURN(groups.pp, MakeGroup(job, {tp_rank, stage, grid.pp()}, settings));
  ASSIGN_OR_RETURN(const std::vector<int> nodes, NodesOfRanks(job, session));
  groups.most_whole_bytes_from_previous = MostWholeBytes(grid, nodes, stage - 1);
  groups.most_whole_bytes_to_next = MostWholeBytes(grid, nodes, stage);
  groups.most_undivided_bytes = kMostUndividedBytesOnCpus;
  return groups;
}

absl::StatusOr<RankGroups> MakeMpiGroups(const MpiSession& session, const ProcessGrid& grid,
                                         const MpiOptions& options) {
  RETURN_IF_ERROR(CheckGridFits(session, grid));
  return MakeGroupsOf(MPI_COMM_WORLD, session, grid, {.options = options});
}

}  // namespace lockstep
