// What Hopper does beside a block's threads: barriers in shared memory that copies and threads
// arrive at, and copies of boxes of tensors (PTX ISA, "mbarrier", "cp.async.bulk.tensor", "Async
// proxy", "Tensor swizzling modes").
//
// A copy's destination is 0xff from its issue on; it arrives as late as can be, when no thread of
// the block can go on without it (in random thread orders earlier, at times or always). What
// threads write to shared memory copies and products may touch only after FenceAsyncProxy of the
// thread that wrote: a thread's writes are told from others' when it fences, meets a barrier or
// arrives at one.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_emulation/runtime/block_runner.h"
#include "tests/support/cuda_emulation/runtime/warpgroup_products.h"

namespace lockstep::cuda_emulation {

// Where shared memory begins for those that name it by numbers: a multiple of 16 and of no more.
constexpr uint32_t kSharedBase = 1040;

constexpr int64_t kLeap = int64_t{1} << 40;  // of a clock, in cycles

// Of one block, whose threads call it.
class AsyncProxy {
 public:
  AsyncProxy(BlockRunner& runner, char* shared, size_t bytes);

  uint32_t AddressOf(const void* shared, const Site& site) const;

  void Init(const void* barrier, uint32_t arrivals, const Site& site);
  void FenceInit();
  void Arrive(const void* barrier, uint32_t expected_bytes, const Site& site);
  bool TryWait(const void* barrier, uint32_t parity, const Site& site);
  // A multiprocessor's own: now and then a thread goes on, after a stop, where it has come further,
  // or less far.
  int64_t Clock();
  void NamedBarrier(int id, int threads, bool wait, const Site& site);
  bool NamedBarrierAny(int id, int threads, bool mine, const Site& site);

  void Copy(void* shared, const CUtensorMap& map, const void* barrier, std::array<int, 3> at,
            const Site& site);
  void Fence();
  void NoteWrites();
  // 16 bytes as copies and products see them; null when they must not be read yet.
  const char* Read16(uint32_t address) const;

  WarpgroupProducts& products() { return products_; }
  // No thread can go on: a copy arrives, or else waits end in vain. False when there are neither.
  bool Advance();
  void MaybeAdvance();  // before a thread's turn
  // What may not be left when all threads have returned, or "".
  std::string Leftover() const;

 private:
  struct Barrier {
    uint32_t arrivals = 0;
    int64_t pending = 0;
    int64_t bytes = 0;  // expected and not yet copied
    uint32_t parity = 0;
    bool fenced = false;
    int initialised_by = 0;
    std::vector<int> waiting;
  };
  struct Named {
    int threads = 0;
    int arrived = 0;
    std::vector<int> waiting;
    int votes = 0;              // of those that have arrived
    bool any_true = false;      // of these votes
    bool was_any_true = false;  // of the last ones
  };
  struct Pending {
    uint32_t to;
    CUtensorMap map;
    uint32_t barrier;
    std::array<int, 3> at;
    Site site;
  };

  Barrier& Find(const void* barrier, const Site& site);
  void EndPhaseIfComplete(Barrier& barrier);
  void Deliver(size_t index);
  void WriteBox(const Pending& copy);
  void Write16(uint32_t address, const char* bytes);

  BlockRunner& runner_;
  char* shared_;
  size_t bytes_;
  std::vector<char> known_;          // shared memory, but for writes that nobody has noted yet
  std::vector<int16_t> written_by_;  // of 16 bytes each: a thread that has not fenced since, or -1
  std::map<uint32_t, Barrier> barriers_;
  std::array<Named, 16> named_;
  std::deque<Pending> copies_;
  std::vector<std::vector<uint32_t>> written_;  // by threads: 16 bytes each, since they fenced
  std::vector<bool> gave_up_;                   // of threads whose wait has ended in vain
  int64_t clock_ = kLeap;
  int num_looks_ = 0;  // at it
  int num_waits_ = 0;  // that were not over at once
  WarpgroupProducts products_;
};

}  // namespace lockstep::cuda_emulation
