#include "tests/support/cuda_emulation/compiled/races.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

template <typename List, typename Of>
void Erase(List& list, const Of& of) {
  list.erase(std::remove_if(list.begin(), list.end(), of), list.end());
}

}  // namespace

BlockRaces::BlockRaces(int num_threads) : threads_(num_threads) {}

// ---- who knows of whom ----

void BlockRaces::Release(int thread, const Meeting& meeting) {
  Thread& mine = threads_[thread];
  mine.known.resize(threads_.size());
  mine.known[thread] = mine.clock++;
  Clocks& known = known_[meeting];
  known.resize(threads_.size());
  for (size_t t = 0; t < known.size(); ++t) known[t] = std::max(known[t], mine.known[t]);
}

void BlockRaces::Acquire(int thread, const Meeting& meeting) {
  const auto known = known_.find(meeting);
  if (known == known_.end()) return;
  Thread& mine = threads_[thread];
  mine.known.resize(threads_.size());
  for (size_t t = 0; t < mine.known.size(); ++t) {
    mine.known[t] = std::max(mine.known[t], known->second[t]);
  }
}

// Whoever leaves knows of all that was before; clocks go on, and tell of what comes after.
void BlockRaces::LeaveAll(int thread) {
  Thread& mine = threads_[thread];
  ++mine.epoch;
  ++mine.clock;
  std::fill(mine.known.begin(), mine.known.end(), 0);
}

int64_t BlockRaces::ArriveAtNamed(int thread, int id, int threads) {
  const int64_t generation = arrivals_at_named_[id % 16]++ / std::max(threads, 1);
  Release(thread, {Kind::kNamed, id, generation});
  return generation;
}
void BlockRaces::LeaveNamed(int thread, int id, int64_t generation) {
  Acquire(thread, {Kind::kNamed, id, generation});
}

BlockRaces::Meeting BlockRaces::WarpMeeting(int thread, uint32_t mask, uint64_t time) const {
  return {Kind::kWarp, static_cast<uint64_t>(thread / warpSize) << 32 | mask, time};
}
void BlockRaces::ArriveAtWarp(int thread, uint32_t mask) {
  Release(thread, WarpMeeting(thread, mask, times_at_warp_[{thread, mask}]));
}
void BlockRaces::LeaveWarp(int thread, uint32_t mask) {
  Acquire(thread, WarpMeeting(thread, mask, times_at_warp_[{thread, mask}]++));
}

void BlockRaces::ArriveAt(int thread, uint32_t offset) {
  Release(thread, {Kind::kMemory, offset, 0});
}
void BlockRaces::WaitedFor(int thread, uint32_t offset) {
  Acquire(thread, {Kind::kMemory, offset, 0});
}

// ---- accesses ----

bool BlockRaces::IsKnown(const Record& earlier, int thread) const {
  const Thread& mine = threads_[thread];
  return earlier.thread == thread || earlier.epoch < mine.epoch ||
         (!mine.known.empty() && earlier.clock <= mine.known[earlier.thread]);
}

std::string BlockRaces::Add(const Access& access) {
  constexpr uint32_t kWordBytes = 4;
  const uint32_t end = access.offset + access.bytes;
  for (uint32_t word = access.offset / kWordBytes; word * kWordBytes < end; ++word) {
    uint8_t bytes = 0;
    for (uint32_t b = 0; b < kWordBytes; ++b) {
      const uint32_t at = word * kWordBytes + b;
      if (at >= access.offset && at < end) bytes |= static_cast<uint8_t>(1u << b);
    }
    if (std::string race = AddToWord(access, word, bytes); !race.empty()) return race;
  }
  return "";
}

BlockRaces::Word& BlockRaces::At(uint32_t word) {
  const size_t page = word / std::tuple_size_v<Page>;
  if (page >= pages_.size()) pages_.resize(page + 1);
  if (pages_[page] == nullptr) pages_[page] = std::make_unique<Page>();
  return (*pages_[page])[word % std::tuple_size_v<Page>];
}

std::string BlockRaces::AddToWord(const Access& access, uint32_t word, uint8_t bytes) {
  Word& of_word = At(word);
  const auto describe = [&](const Record& earlier, const char* did) {
    return absl::StrFormat(
        "a race at byte %d of shared memory: thread %d %s it at line %d, thread %d %s it, and "
        "nothing orders them",
        access.offset, earlier.thread, did, earlier.site.line(), access.thread,
        access.writes ? "writes" : "reads");
  };
  const auto clashes = [&](const Record& earlier) {
    return (earlier.bytes & bytes) != 0 && !(earlier.is_atomic && access.is_atomic) &&
           !IsKnown(earlier, access.thread);
  };
  for (const Record& earlier : of_word.writes) {
    if (clashes(earlier)) return describe(earlier, "wrote");
  }
  const Thread& thread = threads_[access.thread];
  const Record mine = {access.thread, thread.epoch,     thread.clock,
                       bytes,         access.is_atomic, access.site};
  if (!access.writes) {
    // Of a thread the last read is enough: who knows of it knows of those before.
    const auto is_mine = [&](const Record& r) { return r.thread == access.thread; };
    const auto before = std::find_if(of_word.reads.begin(), of_word.reads.end(), is_mine);
    if (before == of_word.reads.end()) {
      of_word.reads.push_back(mine);
    } else {
      const uint8_t all = before->bytes | bytes;
      *before = mine;
      before->bytes = all;
    }
    return "";
  }
  for (const Record& earlier : of_word.reads) {
    if (clashes(earlier)) return describe(earlier, "read");
  }
  const auto is_covered = [&](const Record& r) {
    return (r.bytes & ~bytes) == 0 && (!r.is_atomic || !access.is_atomic);
  };
  Erase(of_word.writes, is_covered);
  Erase(of_word.reads, is_covered);
  of_word.writes.push_back(mine);
  return "";
}

}  // namespace lockstep::cuda_emulation::ptx
