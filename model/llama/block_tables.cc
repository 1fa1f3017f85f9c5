#include "model/llama/block_tables.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace lockstep {

BlockTables::BlockTables(const BatchLimits& limits)
    : width_(limits.max_blocks_per_seq()),
      entries_(static_cast<size_t>(limits.max_num_seqs * width_)),
      sizes_(static_cast<size_t>(limits.max_num_seqs)) {
  changes_.reserve(std::min<size_t>(entries_.size(), kUsualChanges));
}

absl::Status BlockTables::WriteOne(int64_t index, const NewBlock& block, int64_t num_blocks) {
  const auto [row, at, id] = block;
  const bool is_row = row >= 0 && row < num_rows();
  const int32_t size = is_row ? sizes_[static_cast<size_t>(row)] : 0;
  if (!is_row || at < 0 || at > size || at >= width_ || id < 0 || id >= num_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "batch: new_blocks[%d] puts block %d of %d at %d in row %d, of %d rows for %d blocks each; "
        "it has %d",
        index, id, num_blocks, at, row, num_rows(), width_, size));
  }
  const int64_t place = row * width_ + at;
  int32_t& entry = entries_[static_cast<size_t>(place)];
  changes_.push_back({static_cast<int32_t>(place), row, entry, size});
  entry = id;
  sizes_[static_cast<size_t>(row)] = at + 1;
  return absl::OkStatus();
}

absl::Status BlockTables::Write(std::span<const NewBlock> blocks, int64_t num_blocks) {
  last_write_ = changes_.size();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const absl::Status status = WriteOne(static_cast<int64_t>(i), blocks[i], num_blocks);
    if (status.ok()) continue;
    UndoWrite();
    return status;
  }
  return absl::OkStatus();
}

void BlockTables::UndoWrite() {
  while (changes_.size() > last_write_) {
    const Change& change = changes_.back();
    entries_[static_cast<size_t>(change.place)] = change.old_block;
    sizes_[static_cast<size_t>(change.row)] = change.old_size;
    changes_.pop_back();
  }
}

void BlockTables::Clear() {
  std::fill(sizes_.begin(), sizes_.end(), 0);
  last_write_ = changes_.size();
}

// Of an entry that was written several times one change or more names what the copy has, and each
// that is sent carries what it is in the end.
std::span<const PlacedBlock> BlockTables::TakeChanged(std::span<PlacedBlock> room) {
  size_t count = 0;
  while (!changes_.empty() && count < room.size()) {
    const Change& change = changes_.back();
    const int32_t block = entries_[static_cast<size_t>(change.place)];
    if (block != change.old_block) room[count++] = {change.place, block};
    changes_.pop_back();
  }
  last_write_ = changes_.size();
  return room.first(count);
}

}  // namespace lockstep
