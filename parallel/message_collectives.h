// Collectives by messages between ranks, for groups whose ranks do not share memory (or are faster
// so); for the MPI bodies only (this header includes mpi.h). Sums are added in the fixed tree of
// neighbours, whatever the algorithm.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "parallel/mpi_messages.h"

namespace lockstep {

class MessageCollectives {
 public:
  // All-reduces of more than small_bytes are a reduce-scatter and an all-gather. `messages`
  // outlives it.
  MessageCollectives(MpiMessages& messages, int64_t small_bytes)
      : messages_(messages), small_bytes_(small_bytes) {}

  // As Communicator's.
  absl::Status AllReduceSum(float* data, int64_t count);
  absl::Status ReduceScatterSum(float* data, int64_t share);
  absl::Status AllGather(const void* mine, int64_t bytes, void* all);
  absl::Status Barrier();

 private:
  struct Neighbours {
    int to;
    int from;
  };
  // The rank `distance` ahead of this one, and the one as far behind.
  Neighbours At(int distance) const;
  absl::Status ReduceByDoubling(float* data, int64_t count);
  absl::Status ReduceByHalving(float* data, int64_t count);
  absl::Status ReduceGathered(float* data, int64_t count);
  float* Scratch(int64_t count);
  int rank() const { return messages_.rank(); }
  int size() const { return messages_.size(); }

  MpiMessages& messages_;
  const int64_t small_bytes_;
  std::vector<float> scratch_;  // grows to the largest need, then stays
};

}  // namespace lockstep
