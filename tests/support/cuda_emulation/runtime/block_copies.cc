// Copies that a block's threads have under way (cp.async).
#include <algorithm>
#include <cstring>

#include "tests/support/cuda_emulation/runtime/block_runner.h"

namespace lockstep::cuda_emulation {

// The destination is unknown from now on until the copy is waited for.
void BlockRunner::IssueCopy(void* shared, const void* global, bool valid) {
  Thread& mine = Mine();
  std::memset(shared, 0xff, sizeof(Bytes16));
  mine.copies.push_back({shared, valid ? global : nullptr, mine.copy_group});
}

void BlockRunner::ReadCopies(Thread& thread) {
  for (size_t i = thread.have_read.size(); i < thread.copies.size(); ++i) {
    Bytes16& read = thread.have_read.emplace_back();
    if (const void* from = thread.copies[i].from; from != nullptr) {
      std::memcpy(read.data(), from, sizeof(read));
    }
  }
}

void BlockRunner::CommitCopies() { ++Mine().copy_group; }

void BlockRunner::AwaitCopies(int newest) {
  Thread& mine = Mine();
  const int end_group = mine.copy_group - newest;
  size_t end = 0;
  for (; end < mine.copies.size() && mine.copies[end].group < end_group; ++end) {
    constexpr Bytes16 kZeros = {};
    const Copy& copy = mine.copies[end];
    const void* from = end < mine.have_read.size() ? mine.have_read[end].data() : copy.from;
    std::memcpy(copy.to, from != nullptr ? from : kZeros.data(), sizeof(Bytes16));
  }
  const auto erase_first = [](auto& list, size_t count) {
    list.erase(list.begin(), list.begin() + static_cast<int64_t>(std::min(count, list.size())));
  };
  erase_first(mine.copies, end);
  erase_first(mine.have_read, end);
}

}  // namespace lockstep::cuda_emulation
