#include "parallel/shared_memory_collectives.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "parallel/tree_sum.h"

namespace lockstep {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

// Sleeps while *word == value, until woken or 50 ms have passed. Not FUTEX_PRIVATE: the waker is
// another process.
void FutexWait(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec longest{.tv_sec = 0, .tv_nsec = 50'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &longest, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
          0);
}

// The counter has come at least as far as target (both wrap around).
bool HasReached(uint32_t counter, uint32_t target) {
  return static_cast<int32_t>(counter - target) >= 0;
}

}  // namespace

int64_t SharedMemoryCollectives::BytesNeeded(int size) {
  return size * (static_cast<int64_t>(sizeof(Flag)) + 2 * kSlotBytes);
}

SharedMemoryCollectives::SharedMemoryCollectives(void* memory, int rank, int size, bool may_spin,
                                                 Interruption& interruption)
    : flags_(static_cast<Flag*>(memory)),
      slots_(static_cast<std::byte*>(memory) + size * static_cast<int64_t>(sizeof(Flag))),
      rank_(rank),
      size_(size),
      policy_(
          {.spin = std::chrono::microseconds(may_spin ? 50 : 0), .yield = {}, .longest_pause = {}}),
      interruption_(interruption),
      parts_(static_cast<size_t>(size)) {}

std::byte* SharedMemoryCollectives::NextSlot() {
  parity_ ^= 1;
  for (int rank = 0; rank < size_; ++rank) {
    parts_[static_cast<size_t>(rank)] =
        reinterpret_cast<float*>(slots_ + (2 * rank + parity_) * kSlotBytes);
  }
  return reinterpret_cast<std::byte*>(parts_[static_cast<size_t>(rank_)]);
}

absl::Status SharedMemoryCollectives::WaitFor(Flag& flag, uint32_t target) const {
  PoliteWait wait(policy_);
  while (!HasReached(flag.published.load(std::memory_order_acquire), target)) {
    if (interruption_.raised()) return absl::UnavailableError("the group was aborted");
    if (wait.HasSpunEnough()) {
      // Sequentially consistent with PublishAndMeet: either it sees the sleeper, or the sleeper
      // sees its store.
      flag.num_sleepers.fetch_add(1);
      const uint32_t seen = flag.published.load();
      if (!HasReached(seen, target)) FutexWait(flag.published, seen);
      flag.num_sleepers.fetch_sub(1);
      interruption_.Poll();
    }
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCollectives::PublishAndMeet() {
  Flag& own = flags_[rank_];
  own.published.store(++num_published_);
  if (own.num_sleepers.load() > 0) FutexWakeAll(own.published);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) RETURN_IF_ERROR(WaitFor(flags_[peer], num_published_));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCollectives::AllReduceSum(float* data, int64_t count) {
  constexpr int64_t kSlotFloats = kSlotBytes / static_cast<int64_t>(sizeof(float));
  for (int64_t at = 0; at < count; at += kSlotFloats) {
    RETURN_IF_ERROR(ReduceStrip(data + at, std::min(kSlotFloats, count - at)));
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCollectives::ReduceStrip(float* data, int64_t count) {
  std::memcpy(NextSlot(), data, static_cast<size_t>(count) * sizeof(float));
  RETURN_IF_ERROR(PublishAndMeet());
  if (count <= kSmallFloats) {
    TreeSum(parts_, 0, count, data);
    return absl::OkStatus();
  }
  // Everybody adds a share, in place: nobody else reads or writes that share of this rank's slot
  // until the second meeting.
  const int64_t share = (count + size_ - 1) / size_;
  const int64_t begin = std::min(count, rank_ * share);
  const int64_t end = std::min(count, begin + share);
  TreeSum(parts_, begin, end, parts_[static_cast<size_t>(rank_)] + begin);
  RETURN_IF_ERROR(PublishAndMeet());
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t first = std::min(count, rank * share);
    const int64_t last = std::min(count, first + share);
    const float* part = parts_[static_cast<size_t>(rank)];
    std::copy(part + first, part + last, data + first);
  }
  return absl::OkStatus();
}

// A slot holds a strip of every rank's share.
absl::Status SharedMemoryCollectives::ReduceScatterSum(float* data, int64_t share) {
  const int64_t longest = kSlotBytes / static_cast<int64_t>(sizeof(float)) / size_;
  for (int64_t at = 0; at < share; at += longest) {
    const int64_t strip = std::min(longest, share - at);
    auto* slot = reinterpret_cast<float*>(NextSlot());
    for (int rank = 0; rank < size_; ++rank) {
      std::copy_n(data + rank * share + at, strip, slot + rank * strip);
    }
    RETURN_IF_ERROR(PublishAndMeet());
    TreeSum(parts_, rank_ * strip, (rank_ + 1) * strip, data + rank_ * share + at);
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryCollectives::AllGather(const void* mine, int64_t bytes, void* all) {
  std::byte* out = static_cast<std::byte*>(all);
  for (int64_t at = 0; at < bytes; at += kSlotBytes) {
    const size_t piece = static_cast<size_t>(std::min(kSlotBytes, bytes - at));
    std::memcpy(NextSlot(), static_cast<const std::byte*>(mine) + at, piece);
    RETURN_IF_ERROR(PublishAndMeet());
    for (int rank = 0; rank < size_; ++rank) {
      std::memcpy(out + rank * bytes + at, parts_[static_cast<size_t>(rank)], piece);
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
