// How the attention of a batch is cut: into tiles of rows, and their contexts into splits that are
// worked on side by side and merged in ascending order.
//
// With fixed splits a row's bits depend on its context alone: its splits are of the same length in
// any batch, and it makes no difference whether one block walks a row's splits or several do.
//
// The host does that for every step, from the lengths of its contexts, and writes a list of what
// blocks are to do, which travels with the batch. How many blocks of a step that repeats are
// launched depends on the batch's size alone, so that a recorded one serves contexts of any
// lengths: blocks beyond the list end at once. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention_batch.h"
#include "kernels/cuda/attention_form.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/dtype.h"

namespace lockstep::cuda {

// Of a device and its kernels.
struct AttentionMachine {
  int num_multiprocessors = 1;
  bool wgmma = false;         // works on chunks: one block to a multiprocessor, not two
  bool fixed_splits = false;  // always of the same length; not with wgmma
  int64_t workspace_bytes = kAttentionWorkspaceBytes;
  // For tests. Splits of so many tokens, a multiple of kAttentionTile; 0: as is best.
  int64_t split_tokens = 0;
  bool decodes_as_chunks = false;
};

// A batch's lists. Allocates only for those that are larger than any before and than reserved.
class AttentionWork {
 public:
  void Reserve(int64_t bytes);
  // Sequences without tokens or without context have no work. Partial results of one tile of 16
  // rows must fit the workspace.
  const AttentionForm& LayOut(const AttentionBatch& batch, const AttentionHeads& heads,
                              DType kv_dtype, const AttentionMachine& machine);
  const AttentionForm& form() const { return form_; }
  int64_t split_tokens() const { return split_tiles_ * kAttentionTile; }
  // form().launches times LaunchBytes(): headers, items and merges of each.
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

}  // namespace lockstep::cuda
