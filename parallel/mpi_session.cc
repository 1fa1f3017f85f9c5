#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/usable_cores.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_handle.h"
#include "parallel/mpi_start_mail.h"

namespace lockstep {
namespace {

struct Node {
  int lowest_rank = 0;
  int num_ranks = 1;
  int my_rank = 0;
  int num_cores = 1;
  bool shares_cores = true;
};

absl::Status FindCores(MPI_Comm here, Node& node) {
  cpu_set_t mine, any, all;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) CPU_SET(0, &mine);
  RETURN_IF_ERROR(
      FromMpi(MPI_Allreduce(&mine, &any, sizeof(mine), MPI_BYTE, MPI_BOR, here), "MPI_Allreduce"));
  RETURN_IF_ERROR(
      FromMpi(MPI_Allreduce(&mine, &all, sizeof(mine), MPI_BYTE, MPI_BAND, here), "MPI_Allreduce"));
  node.num_cores = std::min(CPU_COUNT(&any), CoresOfQuota().value_or(CPU_SETSIZE));
  node.shares_cores = CPU_EQUAL(&any, &all);
  return absl::OkStatus();
}

absl::StatusOr<Node> FindNode(int rank) {
  MPI_Comm comm = MPI_COMM_NULL;
  RETURN_IF_ERROR(
      FromMpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm),
              "MPI_Comm_split_type"));
  const MpiHandle here(comm);
  Node node;
  MPI_Comm_size(here.get(), &node.num_ranks);
  MPI_Comm_rank(here.get(), &node.my_rank);
  RETURN_IF_ERROR(FromMpi(MPI_Allreduce(&rank, &node.lowest_rank, 1, MPI_INT, MPI_MIN, here.get()),
                          "MPI_Allreduce"));
  RETURN_IF_ERROR(FindCores(here.get(), node));
  return node;
}

}  // namespace

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
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  ASSIGN_OR_RETURN(const Node node, FindNode(session.rank_));
  session.node_ = node.lowest_rank;
  session.num_ranks_on_node_ = node.num_ranks;
  session.rank_on_node_ = node.my_rank;
  session.num_cores_on_node_ = node.num_cores;
  session.shares_cores_ = node.shares_cores;
  return session;
}

MpiSession::MpiSession(MpiSession&& other) noexcept
    : active_(std::exchange(other.active_, false)),
      patience_(other.patience_),
      rank_(other.rank_),
      world_size_(other.world_size_),
      node_(other.node_),
      num_ranks_on_node_(other.num_ranks_on_node_),
      rank_on_node_(other.rank_on_node_),
      num_cores_on_node_(other.num_cores_on_node_),
      shares_cores_(other.shares_cores_) {}

MpiSession::~MpiSession() {
  if (active_) MPI_Finalize();
}

absl::StatusOr<std::string> MpiSession::Broadcast(std::string bytes) const {
  StartMail mail(rank_, world_size_, patience_);
  if (rank_ != kRootRank) return mail.ReceiveOf(kRootRank);
  RETURN_IF_ERROR(mail.SendAll(bytes));
  RETURN_IF_ERROR(mail.Finish());
  return bytes;
}

absl::StatusOr<std::vector<std::string>> MpiSession::AllGather(const std::string& mine) const {
  StartMail mail(rank_, world_size_, patience_);
  if (rank_ != kRootRank) {
    RETURN_IF_ERROR(mail.Send(kRootRank, mine));
    RETURN_IF_ERROR(mail.Finish());
    ASSIGN_OR_RETURN(const std::string packed, mail.ReceiveOf(kRootRank));
    return StartMail::Unpack(packed);
  }
  std::set<int> others;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_) others.insert(rank);
  }
  ASSIGN_OR_RETURN(StartMail::Texts received, mail.Receive(std::move(others)));
  std::vector<std::string> gathered;
  for (int rank = 0; rank < world_size_; ++rank) {
    gathered.push_back(rank == rank_ ? mine : std::move(received.at(rank)));
  }
  RETURN_IF_ERROR(mail.SendAll(StartMail::Pack(gathered)));
  RETURN_IF_ERROR(mail.Finish());
  return gathered;
}

void MpiSession::AbortJob(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();  // MPI_Abort does not return
}

}  // namespace lockstep
