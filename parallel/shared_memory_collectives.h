// Collectives through memory that all ranks of a group have mapped: what a tensor parallel group
// inside one host uses.
//
// Each rank has a flag (how many times it has published) and two slots for data. A collective
// copies into a slot, publishes, waits until everybody has published as often, and reads the
// others' slots. Two slots suffice: who publishes collective k + 1 has finished reading k, so slot
// k may be written again in k + 2. An all-reduce of a few KiB thus costs one meeting instead of
// MPI's handshakes per step. A wait spins for about as long as a wake-up costs, then sleeps in the
// kernel until the peer wakes it; it does not yield in between (measured with four ranks on four
// busy cores: the 99th percentile of a small all-reduce is 3 to 7 ms with 50 us of sched_yield,
// 0.2 ms without). One thread per rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "parallel/interruption.h"
#include "parallel/polite_wait.h"

namespace lockstep {

class SharedMemoryCollectives {
 public:
  // Of the shared memory, which is zero at first and outlives all ranks' objects.
  static int64_t BytesNeeded(int size);
  // interruption is polled while waiting, at least every 50 ms.
  SharedMemoryCollectives(void* memory, int rank, int size, bool may_spin,
                          Interruption& interruption);

  // As Communicator's.
  absl::Status AllReduceSum(float* data, int64_t count);
  absl::Status ReduceScatterSum(float* data, int64_t share);
  absl::Status AllGather(const void* mine, int64_t bytes, void* all);
  absl::Status Barrier() { return PublishAndMeet(); }

 private:
  struct alignas(64) Flag {
    std::atomic<uint32_t> published;  // wraps around
    std::atomic<uint32_t> num_sleepers;
  };
  // An all-reduce needs a second meeting only above this size, where sharing the additions pays.
  static constexpr int64_t kSmallFloats = 4096;
  static constexpr int64_t kSlotBytes = 256 * 1024;

  absl::Status ReduceStrip(float* data, int64_t count);
  absl::Status PublishAndMeet();
  absl::Status WaitFor(Flag& flag, uint32_t target) const;
  // Moves on to the other of this rank's slots and returns it; slots_ then holds everybody's.
  std::byte* NextSlot();

  Flag* const flags_;       // [size]
  std::byte* const slots_;  // [size][2][kSlotBytes]
  const int rank_;
  const int size_;
  const PoliteWait::Policy policy_;
  Interruption& interruption_;
  uint32_t num_published_ = 0;
  int parity_ = 0;
  std::vector<float*> parts_;  // everybody's current slot
};

}  // namespace lockstep
