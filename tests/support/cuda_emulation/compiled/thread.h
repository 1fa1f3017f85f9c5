// A thread that runs a kernel's compiled code; its fiber's, from its beginning to its return.
#pragma once

#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "tests/support/cuda_emulation/compiled/counts.h"
#include "tests/support/cuda_emulation/compiled/program.h"
#include "tests/support/cuda_emulation/compiled/races.h"

namespace lockstep::cuda_emulation::ptx {

// Frames that no thread has any more: making them anew takes longer than what many threads do.
using SpareFrames = std::vector<std::vector<uint32_t>>;

class Thread;

// What the threads of a launch share; frames also with other launches of the kernel.
struct Launch {
  std::shared_ptr<const Program> program;
  std::shared_ptr<SpareFrames> spare_frames;
  std::shared_ptr<char> parameters;
  size_t dynamic_shared_bytes = 0;
  std::shared_ptr<LaunchCounter> counter;  // null: nothing is counted
  // By the block's number, while it has threads. Null: races are not looked for.
  std::shared_ptr<std::map<int64_t, BlockRaces>> races;
  // Those that have not returned. After a failure they never do: nothing unwinds their fibers.
  std::shared_ptr<std::list<Thread>> threads;
};

// What each thread of the launch does.
void RunThread(const Launch& launch);

// Where a block's static variables begin, behind its dynamic ones.
size_t StaticSharedOffset(const Launch& launch);

class Thread {
 public:
  explicit Thread(const Launch& launch);
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  void Run();

  template <typename T>
  T Get(int r) const {
    T value;
    std::memcpy(&value, frame_.data() + r, sizeof(T));
    return value;
  }
  // Numbers below 32 bits fill their word.
  template <typename T>
  void Set(int r, T value) {
    if (r < 0) return;
    if constexpr (sizeof(T) < sizeof(uint32_t)) {
      frame_[r] = 0;
    }
    std::memcpy(frame_.data() + r, &value, sizeof(T));
  }
  bool IsTrue(int predicate) const { return frame_[predicate] != 0; }
  void SetTrue(int predicate, bool value) {
    if (predicate >= 0) frame_[predicate] = value ? 1 : 0;
  }
  uint32_t* words(int r) { return frame_.data() + r; }

  // `index`: of the instruction's registers, an address of its space. Whatever cannot be accessed
  // there ends the kernel with a failure.
  char* Resolve(const Instruction& instruction, int index, size_t bytes) {
    return Resolve(instruction, index, bytes, instruction.space, instruction.writes);
  }
  char* Resolve(const Instruction& instruction, int index, size_t bytes, Space space, bool writes);
  // The same of an address that shared memory's instructions take, and back.
  char* SharedPointer(uint64_t address, size_t bytes, const Site& site);
  uint64_t SharedAddressOf(uint64_t pointer, const Site& site) const;

  // For what is counted: accesses that go through no Resolve.
  void CountAccess(const Instruction& instruction, uint64_t address, size_t bytes, bool is_shared,
                   bool writes);
  LaunchCounter* counter() { return launch_.counter.get(); }
  // Null where races are not looked for.
  BlockRaces* races() { return races_; }
  static int number();  // in its block
  // In shared memory, of what Resolve or SharedPointer has given.
  static uint32_t SharedOffset(const void* pointer);

  void GoTo(int target) { next_ = target; }
  void Return() { next_ = end_; }

  // Of words that other devices write: is it the one that this thread has read last, unchanged?
  bool ReadsAgain(const void* address, uint32_t value);

 private:
  void RunCounted(int64_t block);
  template <bool counts>
  void RunAll();
  char* ResolveShared(const Instruction& instruction, uint64_t address, size_t bytes, bool writes);
  bool IsMine(const char* pointer, size_t bytes) const;

  const Launch& launch_;
  std::vector<uint32_t> frame_;
  std::vector<char> locals_;
  BlockRaces* races_ = nullptr;
  std::vector<uint32_t> times_;  // that each access was made, where they are counted
  int next_ = 0;
  int end_;
  const void* last_read_ = nullptr;
  uint32_t last_value_ = 0;
};

}  // namespace lockstep::cuda_emulation::ptx
