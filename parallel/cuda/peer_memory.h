// Memory on each rank's device that the kernels of all ranks of a group read and write.
//
// Between processes by CUDA IPC, between threads of one process by the address itself; between
// devices by peer access. Made when the group is; what cannot be reached is told then.
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

// The machine: ranks of one can try to share memory.
std::string MachineIdentity();

class PeerMemory {
 public:
  // Collective over `host`: `bytes` zeros on each rank's current device, cleared through `stream`.
  // FAILED_PRECONDITION, the same on all ranks, when one of them cannot reach another's memory,
  // which both are named with the reason. machine: MachineIdentity() or what a test pretends.
  static absl::StatusOr<std::unique_ptr<PeerMemory>> Exchange(Communicator& host, int64_t bytes,
                                                              cudaStream_t stream,
                                                              const std::string& machine);
  // No kernel may use the memory any more.
  ~PeerMemory() { Disconnect(); }
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Of a rank of the group, as this rank's kernels address it.
  void* of(int rank) const { return memory_[static_cast<size_t>(rank)].get(); }
  // Lets go of the peers' memory, which its owners may free only after that.
  void Disconnect();

 private:
  struct Facts;
  PeerMemory(int rank, int size) : rank_(rank), memory_(static_cast<size_t>(size)) {}
  absl::Status Allocate(int64_t bytes, cudaStream_t stream);
  absl::Status DescribeMine(const std::string& machine, Facts& facts) const;
  absl::Status Reach(int peer, const Facts& mine, const Facts& theirs);

  const int rank_;
  // By rank. Threads of one process own each other's together: nobody's kernels are left without.
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace lockstep::cuda
