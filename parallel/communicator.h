// How the ranks of one group talk during a step.
//
// One instance per rank and group, used by the step loop's thread only; every rank of the group
// makes the same collective calls in the same order. Pointers are device pointers of the rank's
// backend (host memory on CPU). A wait spins briefly, then sleeps: ranks may share
// cores. Errors: UNAVAILABLE when a peer is gone or the group was aborted; the group is then dead.
// INTERNAL when a message has another size than its receiver expects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place: every rank ends with the sum over ranks, added in the fixed binary tree of neighbours
  // ((r0+r1)+(r2+r3))+..., the continuation of the K-slice tree (kernels/linear_weight.h). Bitwise
  // the same on every rank and for every algorithm chosen by size. (NCCL's own sums, where ours are
  // not faster and the mode is not deterministic, are the same on every rank only.) A size that is
  // not a power of two uses the tree in which a missing right subtree adds nothing.
  virtual absl::Status AllReduceSum(float* data, int64_t count) = 0;

  // data: [size(), share]. In place: data[rank()] ends as the sum over ranks of what they had
  // there, the one that AllReduceSum makes; what ends in the other rows is undefined.
  virtual absl::Status ReduceScatterSum(float* data, int64_t share) {
    return AllReduceSum(data, share * size());
  }

  // all = concatenation over ranks of each rank's `bytes` bytes at mine. all: size() * bytes. mine
  // may lie in place, at all + rank() * bytes.
  virtual absl::Status AllGather(const void* mine, int64_t bytes, void* all) = 0;
  // Of a rank, what devices that reach each other gather by a single kernel at most.
  static constexpr int64_t kShortGatherBytes = 256 << 10;
  // Several of them at once.
  struct Gathering {
    const void* mine = nullptr;
    int64_t bytes = 0;
    void* all = nullptr;
  };
  virtual absl::Status AllGatherTogether(std::span<const Gathering> gatherings) {
    for (const auto& [mine, bytes, all] : gatherings) {
      if (absl::Status status = AllGather(mine, bytes, all); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Between devices: all + r * stride = the `bytes` bytes that rank r has at mine + rank() *
  // stride, for every r. mine and all do not overlap; stride >= bytes.
  virtual absl::Status AllToAll(const void* /*mine*/, int64_t /*bytes*/, int64_t /*stride*/,
                                void* /*all*/) {
    return absl::UnimplementedError("ranks of this group do not exchange parts");
  }

  // Point to point, in order per (peer, direction), peer != rank(). Send returns once the buffer
  // may be reused; between hosts it waits for the receiver of more than kMostCopiedBytes only, or
  // when thousands of messages are on their way. Both sides name the same number of bytes.
  static constexpr int64_t kMostCopiedBytes = 4000;
  virtual absl::Status Send(int peer, const void* data, int64_t bytes) = 0;
  virtual absl::Status Recv(int peer, void* data, int64_t bytes) = 0;
  // Recv in two parts, where a pipeline of devices has a way back (DeviceGroupOptions): what is
  // issued between them does not wait for the message. It is there for work issued after the
  // FinishRecv that belongs to its StartRecv, the first to the first from this peer. bytes > 0.
  virtual absl::Status StartRecv(int, void*, int64_t) { return NotInParts(); }
  virtual absl::Status FinishRecv(int) { return NotInParts(); }
  // True when a message from peer can be received without waiting.
  virtual bool Probe(int peer) = 0;

  virtual absl::Status Barrier() = 0;

  // For bodies whose calls return before their work is done: what has ended the group since, else
  // OK. Results that the host reads are the ranks' only if it is OK after they were waited for.
  virtual absl::Status Health() { return absl::OkStatus(); }

  // The one call any thread may make: waits in progress and all later calls return UNAVAILABLE. In
  // process, on every rank of the grid; between processes, on this rank only (the others' end is
  // the launcher's matter).
  virtual void Abort() = 0;

  // Of groups that have memory of each other's open (others leave this alone, and do nothing):
  // collective over `host`, whose ranks are the same. Ends the group as Abort does, on all ranks;
  // when it returns OK, none of them has anything of another's open, and each
  // may destroy the object, with the memory it takes, whenever it likes. UNAVAILABLE when `host`
  // has lost a peer, FAILED_PRECONDITION when a peer's device fails.
  virtual absl::Status Disconnect(Communicator& /*host*/) { return absl::OkStatus(); }

 private:
  static absl::Status NotInParts() {
    return absl::UnimplementedError("messages of this group are not received in parts");
  }
};

// The two groups a rank belongs to.
struct RankGroups {
  std::unique_ptr<Communicator> tp;  // same stage; rank() is tp_rank
  std::unique_ptr<Communicator> pp;  // same tp_rank; rank() is the pipeline stage
  // Hidden states of up to so many bytes pass between stages whole, longer ones in slices
  // (parallel/hand_over.h); the same on all ranks of both stages.
  int64_t most_whole_bytes_from_previous = INT64_MAX;
  int64_t most_whole_bytes_to_next = INT64_MAX;
  // Steps with more bytes of hidden states than that are divided over the tensor parallel group
  // (parallel/token_split.h); the same on all ranks of the grid.
  int64_t most_undivided_bytes = INT64_MAX;
};

// Groups of one: for a single rank and for the parts of a test that need no peers.
std::unique_ptr<Communicator> MakeSelfCommunicator();

// All ranks of a grid as threads of this process (tests, and the simulation of layouts): element r
// belongs to rank r. Send copies into a mailbox and never waits.
class ProcessGrid;
std::vector<RankGroups> MakeInProcessGroups(const ProcessGrid& grid);

}  // namespace lockstep
