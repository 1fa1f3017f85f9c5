// How the attention of a batch is cut: into tiles of rows, and their contexts into splits that are
// worked on side by side and merged in ascending order.
//
// The host does that for every step, from the lengths of its contexts, and writes a list of what
// blocks are to do, which travels with the batch. How many blocks are launched depends on the
// batch's size alone, so that a recorded step serves contexts of any lengths: blocks beyond the
// list end at once. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention_work.h"

namespace lockstep::cuda {

constexpr int64_t kAttentionTile = 64;    // tokens of context whose scores are computed at once
constexpr int kAttentionChunkRows = 128;  // of chunks, to a tile
constexpr int kAttentionDecodeRows = 16;  // of decodes
constexpr int kAttentionF32Rows = 4;      // over f32 caches
constexpr int64_t kAttentionWorkspaceBytes = int64_t{64} << 20;  // of partial results

struct AttentionHeads {
  int num_heads = 0;
  int num_kv_heads = 0;  // divides num_heads
  int head_dim = 0;
};

// What is launched: the same for all batches of one size but for `fixed_splits`, where it grows
// with the contexts by doublings.
struct AttentionForm {
  int tile_rows = kAttentionDecodeRows;
  bool decode = true;     // no sequence has more than one token
  bool one_tile = false;  // every split is of one tile, at most: a kernel of little shared memory
  int items = 0;          // blocks to each KV head
  int merges = 0;         // tiles that may have several splits; 0: none has, and nothing is merged
  int launches = 1;       // of both; more where there is no room for the splits of all tiles

  uint64_t Packed() const;
  static AttentionForm Unpacked(uint64_t packed);
  // A header, items and merges.
  int64_t LaunchBytes() const;
  // Rows of partial results that a split takes, of each KV head.
  int PartialRows(const AttentionHeads& heads) const;
};

// Of a device and its kernels.
struct AttentionMachine {
  int num_multiprocessors = 1;
  bool wgmma = false;         // works on chunks: one block to a multiprocessor, not two
  bool fixed_splits = false;  // always of the same length
  int64_t workspace_bytes = kAttentionWorkspaceBytes;
  // For tests. Splits of so many tokens, a multiple of kAttentionTile; 0: as is best.
  int64_t split_tokens = 0;
  bool decodes_as_chunks = false;
};

// A batch's lists. Allocates only for batches that are larger than any before.
class AttentionWork {
 public:
  // Sequences without tokens or without context have no work. Partial results of one tile of 16
  // rows must fit the workspace.
  const AttentionForm& LayOut(const AttentionBatch& batch, const AttentionHeads& heads,
                              DType kv_dtype, const AttentionMachine& machine);
  const AttentionForm& form() const { return form_; }
  int64_t split_tokens() const { return split_tiles_ * kAttentionTile; }
  // form().launches times LaunchBytes().
  std::span<const std::byte> bytes() const {
    return {reinterpret_cast<const std::byte*>(memory_.data()),
            static_cast<size_t>(form_.launches * form_.LaunchBytes())};
  }

 private:
  class Cutter;
  std::vector<AttentionItem> memory_;  // headers, too
  AttentionForm form_;
  int64_t split_tiles_ = 1;
};

// Bytes that AttentionWork may come to.
int64_t MostAttentionWork(const AttentionLimits& limits, const AttentionHeads& heads,
                          DType kv_dtype, const AttentionMachine& machine);

// Slots of partial results that the workspace has room for.
int64_t AttentionSlots(const AttentionForm& form, const AttentionHeads& heads,
                       int64_t workspace_bytes);

}  // namespace lockstep::cuda
