// What attention_layout.cc and attention_work.cc share: how many blocks a device runs and a step
// that repeats launches, and what a way to cut a batch's contexts costs, about. For them alone.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attention_layout.h"

namespace lockstep::cuda {

constexpr int64_t kFixedSplitTiles = 16;  // 1024 tokens
constexpr int kBlocksToMultiprocessor = 2;
constexpr int kWgmmaBlocksToMultiprocessor = 1;
// Blocks of steps that repeat are launched for so many turns of the device beyond one to each tile:
// enough to fill it, and for many sequences some more, so that one much longer context is dealt
// evenly. Those that nothing is left for end at once, but each has had its turn.
constexpr int64_t kSpareTurns = 1;
constexpr int64_t kSpareTurnsOfMany = 3;

template <typename T>
constexpr T DivideUp(T a, T b) {
  return (a + b - 1) / b;
}

inline int TileRows(DType kv_dtype, bool decode) {
  if (kv_dtype == DType::kF32) return kAttentionF32Rows;
  return decode ? kAttentionDecodeRows : kAttentionChunkRows;
}

// Blocks that run at once.
inline int64_t BlocksOfATurn(const AttentionMachine& machine, bool decode) {
  const bool by_wgmma = machine.wgmma && !decode;
  return int64_t{machine.num_multiprocessors} *
         (by_wgmma ? kWgmmaBlocksToMultiprocessor : kBlocksToMultiprocessor);
}

// For each KV head, beyond a block to every tile.
inline int64_t SpareBlocks(int64_t turns, int64_t turn, const AttentionHeads& heads) {
  return DivideUp(turns * turn, int64_t{heads.num_kv_heads});
}

// In tiles of context that a block walks meanwhile: what it takes to begin and to end, and for a
// split's partial results to be written and merged. (A block of chunks walks a tile in 0.8 us by
// wgmma, in twice that by mma.sync, and takes 5 us beside; a decode's waits for memory once before
// its first tile.)
struct CutOverheads {
  double block;
  double split;
  double uneven;  // of a block: what waits for memory does so on some multiprocessors for longer
};
constexpr CutOverheads kDecodeOverheads = {1.0, 0.3, 0.2};
constexpr CutOverheads kWgmmaOverheads = {6.0, 8.0, 0.05};
constexpr CutOverheads kChunkOverheads = {3.0, 4.0, 0.05};
constexpr double kWorthwhile = 0.98;  // of the time with fewer blocks

// Of one KV head. At most, as if all tiles of a sequence saw all of its context.
struct CutTotals {
  int64_t items = 0;
  int64_t splits = 0;        // of tiles that have several
  int64_t partial_rows = 0;  // of those
  int64_t merges = 0;        // tiles that have several splits
  double walked = 0;         // tiles of context, by all items
};

struct CutCost {
  CutOverheads overheads;
  int64_t kv_heads = 1;
  int64_t turn = 1;      // blocks that run at once
  int64_t longest = 0;   // context, in tiles
  int64_t shortest = 0;  // of a row of that sequence

  // In tiles of context, of items of `length`: turns of the longest block where all are about as
  // long, else what there is to do over all multiprocessors and what comes last, which of decodes
  // may be as long as any, of a chunk is its beginning.
  double Of(const CutTotals& totals, int64_t length) const {
    const double beside = overheads.block + (totals.splits > 0 ? overheads.split : 0.0);
    const double block = static_cast<double>(std::min(length, longest)) + beside;
    const double last = static_cast<double>(std::min(length, shortest)) + beside;
    const auto turns = static_cast<double>((totals.items * kv_heads + turn - 1) / turn);
    const double all = totals.walked + overheads.block * static_cast<double>(totals.items) +
                       overheads.split * static_cast<double>(totals.splits);
    const double evenly = all * static_cast<double>(kv_heads) / static_cast<double>(turn);
    return std::min(turns * block, std::max(evenly, block) + last) + overheads.uneven * block;
  }
};

}  // namespace lockstep::cuda
