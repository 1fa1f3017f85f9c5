// Accesses of a block's threads to shared memory that nothing orders: found whatever the order in
// which threads have their turns, and whether or not a result depends on it.
//
// Each thread knows how far every other had come when it last heard of it; barriers pass that on.
// Two accesses to the same bytes, one of them a write, are a race where the
// later thread does not know of the earlier's. (Vector clocks, with the last accesses to each word
// kept as in FastTrack: Flanagan and Freund 2009.) What copies and products do in the background is
// the emulation's own to watch (runtime/async_proxy.h), but for the place a copy fills, which
// counts as written when the copy is issued.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tests/support/cuda_emulation/runtime/warp_functions.h"

namespace lockstep::cuda_emulation::ptx {

// Of one block; told by its threads, which take turns.
class BlockRaces {
 public:
  explicit BlockRaces(int num_threads);

  struct Access {
    int thread;
    uint32_t offset;  // in the block's shared memory
    uint32_t bytes;
    bool writes;
    bool is_atomic;
    Site site;
  };
  // Was it the last?
  bool EndThread() { return ++num_ended_ == threads_.size(); }
  // The race that it is part of, or "".
  std::string Add(const Access& access);

  // After a barrier of all threads that have not returned.
  void LeaveAll(int thread);
  // Of `threads` threads; who does not wait does not leave. Gives what leaving is told.
  int64_t ArriveAtNamed(int thread, int id, int threads);
  void LeaveNamed(int thread, int id, int64_t generation);
  void ArriveAtWarp(int thread, uint32_t mask);
  void LeaveWarp(int thread, uint32_t mask);
  // A barrier in shared memory: what was ahead of all arrivals so far is known after a wait.
  void ArriveAt(int thread, uint32_t offset);
  void WaitedFor(int thread, uint32_t offset);

 private:
  using Clocks = std::vector<uint32_t>;
  struct Thread {
    uint32_t epoch = 0;  // barriers of all threads that it has left
    uint32_t clock = 1;
    Clocks known;  // of this epoch, by thread: how far it knows them to have come; none: of nobody
  };
  struct Record {
    int thread;
    uint32_t epoch;
    uint32_t clock;
    uint8_t bytes;  // a bit to each of the word's
    bool is_atomic;
    Site site;
  };
  struct Word {
    absl::InlinedVector<Record, 1> writes;
    absl::InlinedVector<Record, 1> reads;
  };
  enum class Kind { kNamed, kWarp, kMemory };
  using Meeting = std::tuple<Kind, uint64_t, uint64_t>;  // which, and for the how many-th time

  void Release(int thread, const Meeting& meeting);
  void Acquire(int thread, const Meeting& meeting);
  Word& At(uint32_t word);
  std::string AddToWord(const Access& access, uint32_t word, uint8_t bytes);
  bool IsKnown(const Record& earlier, int thread) const;
  Meeting WarpMeeting(int thread, uint32_t mask, uint64_t time) const;

  std::vector<Thread> threads_;
  size_t num_ended_ = 0;
  std::map<Meeting, Clocks> known_;
  std::array<int64_t, 16> arrivals_at_named_ = {};
  std::map<std::pair<int, uint32_t>, uint64_t> times_at_warp_;  // by thread and mask
  using Page = std::array<Word, 64>;
  std::vector<std::unique_ptr<Page>> pages_;  // of those that were accessed
};

}  // namespace lockstep::cuda_emulation::ptx
