// Copies that a block's threads have under way (cp.async).
#include <cstring>
#include <utility>

#include "tests/support/cuda_emulation/runtime/block_runner.h"

namespace lockstep::cuda_emulation {

// The destination is unknown from now on until the copy is waited for.
void BlockRunner::IssueCopy(void* shared, const void* global, bool valid) {
  Thread& mine = Mine();
  std::memset(shared, 0xff, 16);
  mine.copies.push_back({shared, valid ? global : nullptr, mine.copy_group});
}

void BlockRunner::Copy::Read() {
  if (std::exchange(has_read, true) || from == nullptr) return;
  std::memcpy(read.data(), from, read.size());
}

void BlockRunner::CommitCopies() { ++Mine().copy_group; }

void BlockRunner::AwaitCopies(int newest) {
  Thread& mine = Mine();
  const auto arrived = [&](const Copy& copy) { return copy.group < mine.copy_group - newest; };
  for (Copy& copy : mine.copies) {
    if (!arrived(copy)) continue;
    copy.Read();
    std::memcpy(copy.to, copy.read.data(), copy.read.size());
  }
  std::erase_if(mine.copies, arrived);
}

}  // namespace lockstep::cuda_emulation
