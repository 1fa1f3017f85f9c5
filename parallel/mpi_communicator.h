// Ranks as processes of one MPI job: the session, and the two groups of a rank.
//
// MPI is initialised for calls from one thread: the thread that called MpiSession::Start must be
// the step loop's. Transfers too large to be sent eagerly are preceded by a small message, for
// which a rank waits politely (a late peer costs sleep, not a core); once both sides are there,
// they wait briskly, because MPI moves the bytes only while both poll.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"
#include "parallel/rendezvous.h"

namespace lockstep {

// MPI from MPI_Init_thread to MPI_Finalize. Groups must be gone before it.
class MpiSession {
 public:
  // Returns when it has begun on all ranks of this host. FAILED_PRECONDITION when MPI was
  // initialised before or cannot be.
  static absl::StatusOr<MpiSession> Start(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(MpiSession&& other) noexcept;
  MpiSession& operator=(MpiSession&&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  // Ranks that share memory are one node: its lowest rank, how many there are, and which of them
  // this one is.
  int node() const { return node_; }
  int num_ranks_on_node() const { return num_ranks_on_node_; }
  int rank_on_node() const { return rank_on_node_; }
  // Processors that the ranks of this node may run on, together, when the session started; and
  // whether all may run on all of them, as nobody has divided them.
  int num_cores_on_node() const { return num_cores_on_node_; }
  bool shares_cores() const { return shares_cores_; }

  // How long the next two wait for late ranks; for ever by default.
  void WaitAtMost(absl::Duration patience) { patience_ = patience; }
  // Collective over the job, for its start: late ranks are waited for asleep. UNAVAILABLE with
  // MPI's text; DEADLINE_EXCEEDED naming the late ones, after which the job can only be ended.
  // Every rank gets the bytes that rank 0 gave; what others give is ignored.
  absl::StatusOr<std::string> Broadcast(std::string bytes) const;
  // Every rank gets what each gave, by rank.
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& mine) const;

  // Ends every process of the job, for a rank that cannot go on. Does not return.
  [[noreturn]] static void AbortJob(int exit_code);

 private:
  MpiSession() = default;
  bool active_ = false;
  absl::Duration patience_ = absl::InfiniteDuration();
  int rank_ = 0;
  int world_size_ = 1;
  int node_ = 0;
  int num_ranks_on_node_ = 1;
  int rank_on_node_ = 0;
  int num_cores_on_node_ = 1;
  bool shares_cores_ = true;
};

// How the collectives of a group whose ranks share a host travel. The sums' bits are the same.
enum class HostCollectives {
  kMeasured,      // both are tried when the group is made, and the faster stays
  kSharedMemory,  // 512 KiB per rank
  kMessages,
};

struct MpiOptions {
  HostCollectives host_collectives = HostCollectives::kMeasured;
  // Above this an all-reduce is a reduce-scatter and an all-gather; below, every rank sends all it
  // has.
  int64_t small_all_reduce_bytes = 32 * 1024;
  // The largest single MPI message (MPI counts are int); longer transfers are cut.
  int64_t max_message_bytes = int64_t{1} << 30;
};

// Collective over the whole job. INVALID_ARGUMENT unless grid.world_size() is the job's size.
absl::StatusOr<RankGroups> MakeMpiGroups(const MpiSession& session, const ProcessGrid& grid,
                                         const MpiOptions& options = {});

// How the job's ranks come together, again and again. Collective, and errors, as above. Its object
// outlives the groups that it makes and goes before the session.
absl::StatusOr<std::unique_ptr<Rendezvous>> MakeMpiRendezvous(const MpiSession& session,
                                                              const ProcessGrid& grid,
                                                              const MpiOptions& options = {});

}  // namespace lockstep
