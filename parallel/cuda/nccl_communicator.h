// The body of Communicator over NCCL: ranks exchange what lies on their devices.
//
// Every call but Barrier is work of one stream: it returns when it is launched, and takes its turn
// among that stream's kernels. Data must be on the device. When a group ends (a peer is gone,
// Abort) its kernels return at once with undefined results: who has waited for the stream asks for
// Health before it believes them. UNAVAILABLE names rank and operation.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/notice.h"
#include "kernels/cuda/kernel_stream.h"
#include "parallel/communicator.h"

namespace lockstep::cuda {

struct NcclSiblings;  // parallel/cuda/nccl_group.h

struct NcclOptions {
  // Of all groups of the rank's device, which end together. Null: the group ends alone.
  std::shared_ptr<NcclSiblings> siblings;
  // Sums are added in the fixed tree of neighbours (parallel/communicator.h): ranks send each other
  // their parts and a kernel of ours adds them up, which reads and writes them once more but sends
  // no more bytes than a ring; short ones are gathered whole by everybody. Otherwise NCCL chooses
  // the order: the same bits on every rank, but others for other sizes and topologies.
  bool deterministic = false;
  int64_t workspace_bytes = int64_t{64} << 20;  // where deterministic sums meet; cut into chunks
  // Where the devices reach each other, AllGather up to 256 KiB of a rank and AllReduceSum by
  // kernels of our own (parallel/cuda/peer_collectives.h), of more than 16 KiB of a rank as far as
  // a trial at the start finds them faster than NCCL. Sums, always in the fixed tree: up to 256
  // KiB, and beyond, up to 8 MiB, by such a trial too, or if they are to be deterministic. Where
  // devices don't, `notice` is told why, on rank 0.
  bool own_collectives = false;
  // Others compute on this rank's device, too, of the group or not. Where that is so for any rank
  // of the group there is no trial, which would time how the devices change between them and take
  // tens of seconds: of what it would choose between all is ours, and `notice` is told why.
  bool shares_device = false;
  Notice notice;
  int max_thread_blocks = 0;  // of NCCL's kernels; 0: its own choice
  // Sizes up to this are exchanged once at the start: NCCL connects an algorithm at its first use.
  // Above the default it takes no others. Less where sums are never as long.
  int64_t connect_bytes = int64_t{32} << 20;
  // Ranks will call AllToAll, which needs a connection between any two of them.
  bool connects_pairs = false;
  std::chrono::milliseconds start_patience{300000};  // until all ranks have come
  std::chrono::milliseconds patience{60000};         // of launches and of Barrier
  // Called before the group is left: forgets graphs that hold its work, for which NCCL would wait
  // for ever.
  std::function<void()> forget_graphs;
};

// The group of `bootstrap`, whose ranks all call it, each with its device current; `bootstrap`
// hands round the group's id and is not kept. FAILED_PRECONDITION, on all ranks, where NCCL's
// exchanges lose or change numbers (parallel/cuda/first_exchange.h). The stream must outlive the
// result. A group that has not ended is left by all of its ranks together; one that has, after
// Disconnect, or it leaves behind what other processes may have open (parallel/cuda/peer_memory.h).
//
// Of its calls: Barrier waits on the host and may not be part of a captured graph; Probe is never
// called (who receives on a device knows what comes); a receive of another size than its send waits
// for ever, or until Abort.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   const KernelStream& stream,
                                                                   const NcclOptions& options);

}  // namespace lockstep::cuda
