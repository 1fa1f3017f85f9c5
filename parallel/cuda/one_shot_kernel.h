// The kernel of a one-shot all-reduce: every rank puts its numbers where the others can read them
// and adds up what all have put there. One meeting instead of a ring's 2 (size - 1) steps.
//
// Each rank's memory has two slots for data, cut into one strip per block, and words in which its
// peers tell each of its blocks how often theirs has come. A block works with the peers' blocks of
// the same index alone: it copies into its strip, tells the peers, waits until all have come as
// often, and reads their strips. Two slots suffice: who comes for the k+1st time has finished
// reading for the kth, so the slot of k may be written again in k + 2. How often a block has come
// is counted in the rank's own memory, so that a recorded launch can be repeated.
//
// A waiting block keeps its multiprocessor. All blocks of one launch find room at once, and few are
// enough; processes that take turns on one GPU get theirs when a waiter's time slice is over: a
// meeting of theirs takes milliseconds, not microseconds.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernel_stream.h"

namespace lockstep::cuda {

struct OneShotMemory {
  static constexpr int kMaxRanks = 8;
  static constexpr int kMaxBlocks = 16;
  static constexpr int64_t kMaxFloats = int64_t{64} << 10;
  static constexpr int64_t kStripFloats = kMaxFloats / kMaxBlocks;

  alignas(256) uint32_t num_meetings[kMaxBlocks];  // of each block; wraps around
  // arrived[b][r]: num_meetings[b] of rank r, written by it.
  alignas(256) uint32_t arrived[kMaxBlocks][kMaxRanks];
  alignas(256) float slots[2][kMaxBlocks][kStripFloats];
};

struct OneShotRanks {
  OneShotMemory* memory[OneShotMemory::kMaxRanks];  // zeros at first
  const uint32_t* aborted;  // the host's; not 0: blocks that wait return, with no result
  int rank;
  int size;  // 2 to kMaxRanks
};

// data[i] = the sum over ranks in the tree of parallel/tree_sum.h, i < count, 0 <= count <=
// kMaxFloats; all ranks launch it with the same count, in the same order. Nothing is launched for a
// count of 0.
cudaError_t LaunchOneShotSum(const OneShotRanks& ranks, float* data, int64_t count,
                             const KernelStream& stream);

}  // namespace lockstep::cuda
