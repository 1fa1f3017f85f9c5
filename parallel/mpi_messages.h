// Messages between the ranks of one group over MPI, for the MPI bodies only (this header includes
// mpi.h).
//
// A wait ends with UNAVAILABLE when the group's interruption is raised, whatever the peer does.
// Called by the thread that has initialised MPI.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "parallel/communicator.h"
#include "parallel/interruption.h"
#include "parallel/mpi_groups.h"
#include "parallel/mpi_handle.h"
#include "parallel/polite_wait.h"

namespace lockstep {

class MpiMessages {
 public:
  // What one rank sends and receives at once. Either side may be MPI_PROC_NULL.
  struct Transfer {
    int to = MPI_PROC_NULL;
    const void* send = nullptr;
    int64_t send_bytes = 0;
    int from = MPI_PROC_NULL;
    void* recv = nullptr;
    int64_t recv_bytes = 0;
  };

  // Two communicators of the same ranks: Exchange goes over `collectives`.
  MpiMessages(MpiHandle collectives, MpiHandle messages, const MpiGroupSettings& settings);
  ~MpiMessages();
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm collectives() const { return collectives_.get(); }
  Interruption& interruption() { return interruption_; }
  // UNAVAILABLE when the group was aborted.
  absl::Status Health() const;

  // Part of a collective: the peers make the matching call. INTERNAL when they speak of other
  // sizes.
  absl::Status Exchange(const Transfer& whole);
  // As Communicator's.
  absl::Status Send(int peer, const void* data, int64_t bytes);
  absl::Status Recv(int peer, void* data, int64_t bytes);
  bool Probe(int peer);

 private:
  // A small message on its way. Open MPI's shared memory reports it sent only when the receiver's
  // own calls have taken it, unless it is very small: about 1 KiB (btl_vader's fast boxes, 4.1).
  struct Copy {
    MPI_Request request = MPI_REQUEST_NULL;
    std::array<std::byte, Communicator::kMostCopiedBytes> bytes;
  };

  absl::Status SendCopy(int peer, const void* data, int64_t bytes);
  absl::Status Meet(const Transfer& transfer);
  absl::Status Move(MPI_Comm comm, const Transfer& transfer, const PoliteWait::Policy& policy);
  absl::Status Wait(MPI_Request* requests, int count, int64_t expected_bytes,
                    const PoliteWait::Policy& policy);
  void TakeBack(MPI_Request* requests, int count, bool receives);
  absl::Status CheckPeer(int peer) const;

  MpiHandle collectives_;
  MpiHandle messages_;
  const int64_t most_bytes_;   // of one message
  PoliteWait::Policy polite_;  // the peer may be late
  PoliteWait::Policy brisk_;   // the peer is there
  int rank_ = 0;
  int size_ = 1;
  Interruption interruption_;
  // Of Meet and of long messages; members, as an aborted one stays behind.
  int64_t meeting_mine_ = 0;
  int64_t meeting_theirs_ = 0;
  std::deque<std::unique_ptr<Copy>> sent_;  // the oldest first
  std::vector<std::unique_ptr<Copy>> spare_;
};

}  // namespace lockstep
