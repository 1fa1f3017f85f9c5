// The block tables of a stage's sequences as the host has them: rows that stay from step to step,
// of which a batch brings what is new. What has changed is sent to the device's copy
// (device_batch.h), which therefore is what this is whenever a step begins there. Pure; used by the
// step loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/batch_index.h"
#include "model/llama/step_batch.h"

namespace lockstep {

class BlockTables {
 public:
  static constexpr int64_t kUsualChanges = 16384;  // of a step: room for so many is there before

  BlockTables() = default;
  // A row to each sequence that there may be, all empty.
  explicit BlockTables(const BatchLimits& limits);
  // Of their entries.
  static int64_t BytesFor(const BatchLimits& limits) {
    return limits.max_num_seqs * limits.max_blocks_per_seq() * int64_t{sizeof(int32_t)};
  }

  // Takes them in, one after the other: a row ends with the block written last, so that a slot's
  // next tenant begins anew with its first. INVALID_ARGUMENT naming the entry, for rows and blocks
  // that there are not, and where a row would have a gap; then nothing has changed.
  absl::Status Write(std::span<const NewBlock> blocks, int64_t num_blocks);
  // As it was before the last Write; not after TakeChanged.
  void UndoWrite();
  // All rows are empty: what they named is no more.
  void Clear();

  int64_t num_rows() const { return std::ssize(sizes_); }
  int64_t width() const { return width_; }  // blocks that a row has room for
  // As many as the row has.
  std::span<const int32_t> row(int64_t row) const {
    return {entries_.data() + row * width_, static_cast<size_t>(sizes_[static_cast<size_t>(row)])};
  }
  std::span<const int32_t> entries() const { return entries_; }  // [num_rows, width]

  int64_t num_changes() const { return std::ssize(changes_); }  // not all need be taken
  // What a copy that was the same at the last call lacks: as many as there are, or room for. No
  // more when there are none.
  std::span<const PlacedBlock> TakeChanged(std::span<PlacedBlock> room);

 private:
  struct Change {
    int32_t place = 0;
    int32_t row = 0;
    int32_t old_block = 0;
    int32_t old_size = 0;
  };
  absl::Status WriteOne(int64_t index, const NewBlock& block, int64_t num_blocks);

  int64_t width_ = 0;
  std::vector<int32_t> entries_;
  std::vector<int32_t> sizes_;   // [num_rows]
  std::vector<Change> changes_;  // since TakeChanged has taken all
  size_t last_write_ = 0;        // where its changes begin
};

}  // namespace lockstep
