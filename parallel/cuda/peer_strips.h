// What kernels know that add up or gather over ranks whose memory they can read.
//
// Each rank has a Memory of its own on its device, with slots for data, cut into one strip per
// block, and words in which its peers tell each of its blocks how often theirs has come. A block
// works with the peers' blocks of the same index alone. How often a block has come is counted in
// the rank's own memory, so that a recorded launch can be repeated.
//
// A waiting block keeps its multiprocessor. All blocks of one launch find room at once, and few are
// enough; processes that take turns on one GPU get theirs when a waiter's time slice is over: a
// meeting of theirs takes milliseconds, not microseconds.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::cuda {

constexpr int kMaxPeerRanks = 8;

template <int num_blocks, int64_t max_floats>
struct PeerStrips {
  static constexpr int kMaxBlocks = num_blocks;
  static constexpr int64_t kMaxFloats = max_floats;
  static constexpr int64_t kStripFloats = kMaxFloats / kMaxBlocks;

  alignas(256) uint32_t num_meetings[kMaxBlocks];  // of each block; wraps around
  // arrived[b][r]: num_meetings[b] of rank r, written by it.
  alignas(256) uint32_t arrived[kMaxBlocks][kMaxPeerRanks];
  alignas(256) float slots[2][kMaxBlocks][kStripFloats];
};

template <typename Memory>
struct PeerRanks {
  Memory* memory[kMaxPeerRanks];  // zeros at first
  const uint32_t* aborted;        // the host's; not 0: blocks that wait return, with no result
  int rank;
  int size;  // 2 to kMaxPeerRanks
};

}  // namespace lockstep::cuda
