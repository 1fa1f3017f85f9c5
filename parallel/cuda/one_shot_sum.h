// Sums over the ranks of a group that lie on one machine, for messages as short as those of a
// decode step: one kernel each (parallel/cuda/one_shot_kernel.h), which may be part of a recorded
// step. The order of additions is the fixed tree of parallel/tree_sum.h, whatever the size.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernel_stream.h"
#include "parallel/communicator.h"
#include "parallel/cuda/one_shot_kernel.h"
#include "parallel/cuda/peer_memory.h"

namespace lockstep::cuda {

struct OneShotOptions {
  std::string machine = MachineIdentity();          // or what a test pretends
  std::chrono::milliseconds check_patience{30000};  // until the sums that are tried have come out
};

class OneShotSum {
 public:
  static constexpr int64_t kMaxFloats = OneShotMemory::kMaxFloats;

  // Collective over `host`. Adds up numbers whose sum is known before it is believed.
  // FAILED_PRECONDITION, the same on all ranks and saying why, when the group cannot do it: more
  // than kMaxRanks, several machines, no peer access, no CUDA IPC, NCCL_P2P_DISABLE set (the word
  // of those whose machine has broken peer access), or sums that come out wrong or not at all.
  static absl::StatusOr<std::unique_ptr<OneShotSum>> Create(Communicator& host,
                                                            const KernelStream& stream,
                                                            const OneShotOptions& options = {});
  // The stream must be idle, or its waits be aborted.
  ~OneShotSum();
  OneShotSum(const OneShotSum&) = delete;
  OneShotSum& operator=(const OneShotSum&) = delete;

  // data[i] = the sum over ranks, count <= kMaxFloats; work of the stream.
  absl::Status Launch(float* data, int64_t count);
  // Any thread. Kernels that wait, and all later ones, return with undefined results.
  void Abort();
  // As PeerMemory's; nothing is launched afterwards.
  void Disconnect() { memory_->Disconnect(); }

 private:
  explicit OneShotSum(const KernelStream& stream) : stream_(stream) {}
  absl::Status Start(Communicator& host, const std::string& machine);
  absl::Status Check(std::chrono::milliseconds patience);
  absl::Status CheckSum(float* data, std::chrono::milliseconds patience);
  absl::Status Await(std::chrono::milliseconds patience);

  const KernelStream stream_;
  std::unique_ptr<PeerMemory> memory_;
  uint32_t* aborted_ = nullptr;  // pinned, read by kernels
  OneShotRanks ranks_ = {};
};

}  // namespace lockstep::cuda
