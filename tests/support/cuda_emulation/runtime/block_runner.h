// Runs one block of a grid at a time: its threads are fibers that take turns, each until it waits
// for others at a barrier or an exchange of its warp. Called with the device's lock held, so one
// block runs in the whole process.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/cuda_emulation/runtime/fiber.h"
#include "tests/support/cuda_emulation/runtime/warp_functions.h"

namespace lockstep::cuda_emulation {

struct Kernel {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  std::function<void()> thread;  // what each thread does
};

class BlockRunner {
 public:
  BlockRunner();
  // As SetThreadOrder.
  void SetOrder(uint64_t seed);
  // All blocks. What broke a rule, or "".
  std::string Run(const Kernel& kernel);

  // ---- called by the thread that has its turn ----
  void Barrier(const Site& site);
  void Exchange(const char* name, uint32_t mask, void* operand,
                lockstep::cuda_emulation::Exchange exchange, const Site& site);
  int lane() const { return current_ % warpSize; }
  [[noreturn]] void Fail(std::string what);
  void* dynamic_shared() const { return shared_.get(); }
  size_t dynamic_shared_bytes() const { return kernel_->shared_bytes; }
  void IssueCopy(void* shared, const void* global, bool valid);
  void CommitCopies();
  void AwaitCopies(int newest);

 private:
  enum class State { kReady, kAtBarrier, kAtExchange, kReturned };
  struct Copy {
    void* to;
    const void* from;  // null: zeros
    int group;
  };
  struct Thread {
    Fiber fiber;
    State state = State::kReturned;
    Site site;
    const char* name = "";  // of an exchange, for messages
    uint32_t mask = 0;
    // copies in the background
    std::vector<Copy> copies;
    int copy_group = 0;
  };

  // Lanes on their way to one exchange.
  struct Meeting {
    const char* name;
    uint32_t mask;
    lockstep::cuda_emulation::Exchange exchange;
    Site site;
    uint32_t here = 0;
    std::array<void*, 32> operands = {};
  };

  void StartThreads();
  void TakeTurn(int thread);
  int Next();
  void Ready(int thread);
  bool ReleaseBarrier();
  void Wait(State state, const Site& site);
  Meeting& Join(const Meeting& mine);
  uint32_t LanesOfWarp() const;
  std::string DescribeDeadlock() const;
  std::string Describe(int thread) const;
  std::vector<int> Order(int count);

  const Kernel* kernel_ = nullptr;
  int num_threads_ = 0;
  int num_returned_ = 0;
  int num_at_barrier_ = 0;
  int current_ = 0;
  std::deque<int> ready_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::array<std::vector<Meeting>, 32> meetings_;  // by warp
  std::unique_ptr<char, void (*)(void*)> shared_{nullptr, nullptr};
  std::string failure_;
  uint64_t order_ = 0;
  std::mt19937_64 random_;
};

// The one whose kernel runs.
BlockRunner& TheBlockRunner();

}  // namespace lockstep::cuda_emulation
