// Sums and gatherings over the ranks of a group that lie on one machine, for messages as short as
// those of decode steps: one kernel each (parallel/cuda/one_shot_sum.h, two_shot_sum.h,
// one_shot_gather.h), which may be part of a recorded step. The order of additions is the fixed
// tree of parallel/tree_sum.h, whatever the size.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/boot_id.h"
#include "kernels/cuda/kernel_stream.h"
#include "parallel/communicator.h"
#include "parallel/cuda/one_shot_gather.h"
#include "parallel/cuda/one_shot_sum.h"
#include "parallel/cuda/peer_memory.h"
#include "parallel/cuda/two_shot_sum.h"

namespace lockstep::cuda {

struct PeerCollectivesOptions {
  std::string machine = BootId();                   // or what a test pretends
  std::chrono::milliseconds check_patience{30000};  // until each that is tried has come out
};

class PeerCollectives {
 public:
  static constexpr int64_t kOneShotFloats = OneShotMemory::kMaxFloats;
  static constexpr int64_t kMaxFloats = TwoShotMemory::kMaxFloats;
  static constexpr int64_t kMaxGatheredBytes = GatheredRows::kMaxBytes;  // of a rank
  static_assert(kMaxGatheredBytes == Communicator::kShortGatherBytes);
  struct Memory {  // of a rank
    OneShotMemory one_shot;
    TwoShotMemory two_shot;
  };

  // Collective over `host`. Adds up and gathers known numbers before it is believed.
  // FAILED_PRECONDITION, the same on all ranks and saying why, when the group cannot do it: more
  // than kMaxPeerRanks, several machines, no peer access, no CUDA IPC, NCCL_P2P_DISABLE set (the
  // word of those whose machine has broken peer access), or what comes out wrong or not at all.
  static absl::StatusOr<std::unique_ptr<PeerCollectives>> Create(
      Communicator& host, const KernelStream& stream, const PeerCollectivesOptions& options = {});
  // The stream must be idle, or its waits be aborted. Of this rank's memory, as PeerMemory.
  ~PeerCollectives();
  PeerCollectives(const PeerCollectives&) = delete;
  PeerCollectives& operator=(const PeerCollectives&) = delete;

  // Work of the stream. data[i] = the sum over ranks, count <= kMaxFloats.
  absl::Status LaunchSum(float* data, int64_t count);
  // Communicator::AllGather, bytes <= kMaxGatheredBytes.
  absl::Status LaunchGather(const void* mine, int64_t bytes, void* all);
  // Any thread. Kernels that wait, and all later ones, return with undefined results.
  void Abort();
  // As PeerMemory's; nothing is launched afterwards.
  void Disconnect() { memory_->Disconnect(); }
  void Free() { memory_->Free(); }
  // PeerMemory::Leave, after Abort and when what this rank has launched is done.
  absl::Status Leave(Communicator& host);

 private:
  explicit PeerCollectives(const KernelStream& stream) : stream_(stream) {}
  absl::Status Start(Communicator& host, const std::string& machine);
  absl::Status Check(std::chrono::milliseconds patience);
  struct Trial;
  Trial TrialOfSum(bool is_two_shot, int64_t count);
  Trial TrialOfGathering(int64_t row);
  absl::Status Try(const Trial& trial, float* data, std::chrono::milliseconds patience);
  absl::Status LaunchSumBy(bool is_two_shot, float* data, int64_t count);
  absl::Status Await(const char* what, std::chrono::milliseconds patience);

  const KernelStream stream_;
  std::unique_ptr<PeerMemory> memory_;
  uint32_t* aborted_ = nullptr;  // pinned, read by kernels
  OneShotRanks one_shot_ = {};
  TwoShotRanks two_shot_ = {};
};

}  // namespace lockstep::cuda
