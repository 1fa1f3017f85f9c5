// Memory on each rank's device that the kernels of all ranks of a group read and write.
//
// Between processes by CUDA IPC, between threads of one process by the address itself; between
// devices by peer access. Made when the group is; what cannot be reached is told then.
//
// What another process has open must be closed there before it is freed here, or the result is
// undefined (CUDA Runtime API, cudaIpcOpenMemHandle). So a rank frees its own memory when it knows
// that all have let go of it, having met them afterwards. One that never learns that (a peer is
// gone, and with it the job) leaves the memory to the end of its process.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace lockstep::cuda {

// Tells `host` how this rank fared: OK when all did well, else on all ranks FAILED_PRECONDITION
// with what the first of the others says. Errors of `host` as they are. Nobody returns before all
// have called it.
absl::Status Agree(Communicator& host, const absl::Status& mine);

class PeerMemory {
 public:
  // Collective over `host`: `bytes` zeros on each rank's current device, cleared through `stream`.
  // FAILED_PRECONDITION, the same on all ranks, when one of them cannot reach another's memory,
  // which both are named with the reason. machine: ranks of one can try to share memory.
  static absl::StatusOr<std::unique_ptr<PeerMemory>> Exchange(Communicator& host, int64_t bytes,
                                                              cudaStream_t stream,
                                                              const std::string& machine);
  // As Disconnect. Other processes may have this rank's memory open unless it was freed: it stays.
  ~PeerMemory() { Disconnect(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Of a rank of the group, as this rank's kernels address it.
  void* of(int rank) const { return memory_[static_cast<size_t>(rank)].get(); }
  // Lets go of the peers' memory. No kernel of this rank may use any of it any more.
  void Disconnect();
  // Frees this rank's own. All ranks must have disconnected.
  void Free();
  // Collective over `host`, whose ranks are the same: both, if all are `idle`, as Disconnect wants
  // it. Else FAILED_PRECONDITION, as Agree, or an error of `host`; nothing is freed then.
  absl::Status Leave(Communicator& host, const absl::Status& idle);

 private:
  struct Facts;
  struct Block;
  PeerMemory(int rank, int size) : rank_(rank), memory_(static_cast<size_t>(size)) {}
  absl::Status Allocate(int64_t bytes, cudaStream_t stream);
  absl::Status DescribeMine(const std::string& machine, Facts& facts) const;
  absl::Status Reach(int peer, const Facts& mine, const Facts& theirs);
  absl::Status ReachAll(Communicator& host, const Facts& mine);

  const int rank_;
  std::shared_ptr<Block> own_;
  // By rank. Threads of one process own each other's together: nobody's kernels are left without.
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace lockstep::cuda
