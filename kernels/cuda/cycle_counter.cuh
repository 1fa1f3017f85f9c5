// How long a thread has been at something, in cycles of its multiprocessor.
#pragma once

#include <hopper_instructions.cuh>

#include <cstdint>

namespace lockstep::cuda {

// Counts at each look what has passed since the one before, `most_at_once` at most. The clock is a
// multiprocessor's own (CUDA C++ Programming Guide, "Time Function"), and who was stopped, for
// other processes' turns or by a debugger, may go on elsewhere (PTX ISA, "%smid"), where it may
// have come less far, or any length further.
class CycleCounter {
 public:
  __device__ explicit CycleCounter(int64_t most_at_once) : most_at_once_(most_at_once) {}

  // All since the first.
  __device__ int64_t Look() {
    const int64_t now = ClockCycles();
    const int64_t passed = now - last_;
    last_ = now;
    count_ += passed < 0 ? 0 : passed < most_at_once_ ? passed : most_at_once_;
    return count_;
  }

 private:
  const int64_t most_at_once_;
  int64_t last_ = ClockCycles();
  int64_t count_ = 0;
};

}  // namespace lockstep::cuda
