// What a rank is doing, written by its busy thread with three relaxed stores and read by the
// heartbeat's at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {

enum class Operation : uint8_t {
  kStarting,
  kPreflight,
  kLoading,            // the number is the percentage
  kWaitingForPacking,  // begun anew when the rank that packs has come further
  kRehearsing,
  kAllocatingCache,
  kIdle,
  kForward,  // the number is the step, here and below
  kWaitingForTokens,
  kSampling,
};

class RankProgress {
 public:
  void Begin(Operation operation, uint64_t number = 0);
  // The operation moves on: part of it is done.
  void Advance() {
    const uint64_t next = sequence_.load(std::memory_order_relaxed) + 1;  // one writer at a time
    sequence_.store(next, std::memory_order_relaxed);
  }
  // A new epoch, whose steps count from 1.
  void BeginLife() {
    FinishStep(0);
    Begin(Operation::kStarting);
  }
  void FinishStep(uint64_t step) { last_step_.store(step, std::memory_order_relaxed); }

  struct Snapshot {
    uint64_t last_step = 0;  // finished
    std::string operation;   // "forward step 17"
    int64_t operation_age_ms = 0;
    uint64_t operation_sequence = 0;  // rises while the rank does anything
  };
  Snapshot Read() const;

 private:
  static constexpr int kNumberBits = 56;
  static int64_t NowNs() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::atomic<uint64_t> operation_{0};  // operation << kNumberBits | number
  std::atomic<int64_t> since_ns_{NowNs()};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> last_step_{0};
};

}  // namespace lockstep
