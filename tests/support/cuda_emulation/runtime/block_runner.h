// Runs one block of a grid at a time: its threads are fibers that take turns, each until it waits
// for others at a barrier or an exchange of its warp. A block whose threads wait for another device
// (SpinPause) is put aside with all that it holds, and gone on with when its kernel is asked again.
// Called with the device's lock held, so one block runs in the whole process.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_emulation/runtime/fiber.h"
#include "tests/support/cuda_emulation/runtime/random.h"
#include "tests/support/cuda_emulation/runtime/ready_threads.h"
#include "tests/support/cuda_emulation/runtime/warp_functions.h"

namespace lockstep::cuda_emulation {

class AsyncProxy;

struct Kernel {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  bool overlaps = false;         // may begin while the kernel before it runs
  std::function<void()> thread;  // what each thread does
};

class BlockRunner {
 public:
  struct Block;
  // One launch of a kernel, as far as it has come.
  struct Run {
    explicit Run(Kernel kernel);
    ~Run();
    const Kernel kernel;
    const int num_threads;                      // of a block
    bool has_order = false;                     // its blocks are in blocks_to_come
    bool has_begun = false;                     // not counting what BeginEarly did
    bool is_early = false;                      // kernels before it are not done
    bool has_awaited_earlier_kernels = false;   // a block has: its end is then that of theirs, too
    bool has_told = false;                      // other devices, since this was last set to false
    std::deque<int> blocks_to_come;             // in their order
    std::vector<std::unique_ptr<Block>> aside;  // begun, wait for other devices
    std::string failure;                        // what broke a rule, or ""
  };

  BlockRunner();
  ~BlockRunner();
  void SetOrder(uint64_t seed);  // as SetThreadOrder
  // As far as it can go. False: some blocks wait for other devices. Blocks beyond what
  // `num_resident` threads make do not begin before others have ended.
  bool Advance(Run& run, int num_resident);
  // A few blocks of a kernel that overlaps, until they wait for the kernels before it. False: they
  // had begun.
  bool BeginEarly(Run& run);

  // ---- called by the thread that has its turn ----
  void Barrier(const Site& site);
  bool BarrierOr(bool mine, const Site& site);  // true on all threads when it is on one
  // Gives its turn away until the kernel is asked again.
  void SpinPause();
  void AwaitEarlierKernels();
  // Other devices have been told something: they go on first, before this block's other threads.
  void HaveTold();
  void Exchange(const char* name, uint32_t mask, void* operand,
                lockstep::cuda_emulation::Exchange exchange, const Site& site);
  int lane() const { return current_ % warpSize; }
  int thread() const { return current_; }
  int num_threads() const { return run_->num_threads; }
  void Park(const char* name, const Site& site);  // until it is woken
  void Wake(int thread) { Ready(thread); }
  size_t Pick(size_t count);  // one of so many, as the order of threads says
  bool Chance(unsigned one_in) { return order_ > 1 && random_.Below(one_in) == 0; }
  bool IsHasty() const { return order_ > 1 && order_ % 2 == 1; }
  AsyncProxy& Async();  // of the block
  [[noreturn]] void Fail(std::string what);
  void FailBlock(std::string what);  // but returns
  void* dynamic_shared() const;
  size_t dynamic_shared_bytes() const { return run_->kernel.shared_bytes; }
  void IssueCopy(void* shared, const void* global, bool valid);
  void CommitCopies();
  void AwaitCopies(int newest);

 private:
  enum class State { kReady, kAtBarrier, kAtExchange, kParked, kSpinning, kReturned };
  using Bytes16 = std::array<char, 16>;
  struct Copy {
    void* to;
    const void* from;  // null: zeros
    int group;
  };
  struct Thread {
    Fiber fiber;
    uint3 index;
    State state = State::kReturned;
    Site site;
    const char* name = "";  // of what it waits for, for messages
    uint32_t mask = 0;
    std::vector<Copy> copies;        // in the background, groups in order
    std::vector<Bytes16> have_read;  // what the first of them have read already
    int copy_group = 0;
  };

  // What lanes of a mask do together, and those of them that have come.
  struct Meeting {
    const char* name;
    uint32_t mask;
    lockstep::cuda_emulation::Exchange exchange;
    Site site;
    bool IsWith(const Meeting& other) const;
  };
  struct Gathering {
    explicit Gathering(const Meeting& meeting) : meeting(meeting) {}
    Meeting meeting;
    uint32_t here = 0;
    std::array<void*, 32> operands = {};
  };

  void Enter(Run& run);
  void Begin(int index);
  void GoOn();
  void PutAside();
  void StartThreads();
  void TakeTurn(int thread);
  Thread& BeginTurn(int thread);
  void GiveTurnAway();
  int Next();
  void Ready(int thread);
  bool ReleaseBarrier();
  void Wait(State state, const Site& site);
  Thread& Mine();
  static void ReadCopies(Thread& thread);  // those under way, now
  Gathering& Join(const Meeting& mine);
  uint32_t LanesOfWarp() const;
  std::string DescribeDeadlock() const;
  std::string Describe(int thread) const;
  // 0 to count - 1, as the order of threads says; until it is called again.
  const std::vector<int>& Order(int count);

  Run* run_ = nullptr;
  std::unique_ptr<Block> block_;               // the one that runs
  std::vector<std::unique_ptr<Block>> spare_;  // their fibers are used again
  int current_ = 0;
  uint64_t order_ = 0;
  std::vector<int> in_order_;  // of Order
  Random random_;
};

// A block and its threads, each with what it waits for.
struct BlockRunner::Block {
  int index = 0;
  int num_returned = 0;
  int num_at_barrier = 0;
  bool any_true = false;      // at this barrier
  bool was_any_true = false;  // at the last one
  ReadyThreads ready;
  std::vector<int> spinning;
  bool gives_way = false;
  std::vector<std::unique_ptr<Thread>> threads;       // more than the block has, perhaps
  std::array<std::vector<Gathering>, 32> gatherings;  // by warp
  std::unique_ptr<char, void (*)(void*)> shared{nullptr, nullptr};
  std::unique_ptr<AsyncProxy> async;  // once it is used
  std::vector<char> static_shared;    // while it is put aside
};

// The one whose kernel runs.
extern BlockRunner the_block_runner;
inline BlockRunner& TheBlockRunner() { return the_block_runner; }

}  // namespace lockstep::cuda_emulation
