// The group of a pipeline over NCCL, whose messages travel beside the kernels of a step.
//
// A message between neighbours goes through a slot, memory that each end has for the link. Send has
// the compute stream copy into it and returns; a stream of the link's own sends what lies there.
// Recv has the link's stream receive into the slot, as soon as the message before was taken out,
// and the compute stream take it out. So
// - what was sent may be overwritten at once, and the kernels of the next step begin whether or not
//   the receiver has come. Only its Send waits, for the slot: that and the caller's buffer are the
//   two between which steps alternate.
// - hidden states arrive while the step before is still computed, if the host is that far ahead.
// A pipeline may have a way back, a link from the last rank to rank 0, whose receives can be
// started long before the compute stream waits for them: they take no slot, but the memory they are
// given.
//
// Nothing waits in a circle. What a rank issues waits for what it has issued before, and for the
// other end of its message. Stages issue, for one step after another: receive, kernels, send. The
// receive of step i waits for a send of step i, one stage earlier; the send of step i for a receive
// of step i, one stage later, hence for that stage's steps before i. So each wait leads to an
// earlier step, or to an earlier stage of the same one, and ends. With a way back, the last stage
// ends its step with a send, rank 0 with a started receive: it waits for step i of all stages, none
// of which waits for what rank 0 issues afterwards. That holds even for a device that does one
// thing at a time in the order of issue, so no kernel that waits for a peer keeps from the device
// what its peer needs, be it for want of room or because streams share a queue.
//
// A link has an NCCL communicator that no other link of the rank uses, for NCCL does the work of a
// communicator in the order of the calls, over all streams (NCCL 2.28, enqueue.cc: every launch
// waits for the communicator's own stream): a receive would wait for the send called before it,
// and that one for its step's kernels. Links 0-1, 2-3, ... use one of two communicators of all
// ranks, links 1-2, 3-4, ... the other, and so does the way back of an even number of ranks; that
// of an odd one has a third.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device_buffer.h"
#include "parallel/communicator.h"
#include "parallel/cuda/nccl_communicator.h"

namespace lockstep::cuda {

struct PipelineOptions {
  std::shared_ptr<NcclSiblings> siblings;  // as in NcclOptions
  std::chrono::milliseconds start_patience = NcclOptions().start_patience;
  std::chrono::milliseconds patience = NcclOptions().patience;
  // The slots of the links to rank() - 1 and rank() + 1, empty where there is no such rank. Longer
  // messages go in pieces, so both ends of a link must have the same size.
  DeviceBuffer from_previous;
  DeviceBuffer to_next;
  DeviceBuffer way_back;  // of the first and the last rank: the slot of a way back; empty: none
};

// As MakeNcclCommunicator. INTERNAL, on all ranks, when the ends of a link do not agree.
//
// Of its calls: Send and Recv are for neighbours and the way back, StartRecv and FinishRecv for the
// way back alone. None may be part of a captured graph; sums are in NCCL's order.
absl::StatusOr<std::unique_ptr<Communicator>> MakePipelineCommunicator(Communicator& bootstrap,
                                                                       cudaStream_t compute,
                                                                       PipelineOptions options);

}  // namespace lockstep::cuda
