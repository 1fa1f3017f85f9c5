// What kernels are written in, as far as it can be tested apart from them.
#include "kernels/cuda/device.cuh"

#include <gtest/gtest.h>

#include <climits>
#include <vector>

#include "kernels/cuda/cycle_counter.cuh"
#include "tests/kernels/cuda/device_array.h"

namespace lockstep::cuda {
namespace {

TEST(Divisor, DividesAllThatIsNotNegative) {
  for (int divisor = 1; divisor < 5000; ++divisor) {
    const Divisor by(divisor);
    for (const int multiple : {0, divisor, 7 * divisor, INT_MAX / divisor * divisor}) {
      for (const int number : {multiple - 1, multiple, multiple + (INT_MAX - multiple) % 2}) {
        if (number < 0) continue;
        ASSERT_EQ(number / by, number / divisor) << divisor;
      }
    }
    ASSERT_EQ(INT_MAX / by, INT_MAX / divisor);
  }
}

TEST(Divisor, DividesByLargeNumbers) {
  for (const int divisor : {65535, 65536, 65537, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, INT_MAX}) {
    const Divisor by(divisor);
    for (const int number : {0, 1, divisor - 1, divisor, INT_MAX - 1, INT_MAX}) {
      EXPECT_EQ(number / by, number / divisor) << number << " / " << divisor;
    }
  }
}

constexpr int64_t kMostAtOnce = 1000;

__global__ void CountCycles(int64_t* counts, int num_looks) {
  CycleCounter counter(kMostAtOnce);
  for (int i = 0; i < num_looks; ++i) counts[i] = counter.Look();
}

// The emulated clock leaps, as that of whoever was stopped does, once in sixteen looks, by turns
// forwards and back.
TEST(CycleCounter, LeapsOfTheClockAreShort) {
  constexpr int kNumLooks = 160;
  constexpr int kNumLeaps = kNumLooks / 16;
  const testing::DeviceArray<int64_t> counts(kNumLooks);
  ASSERT_EQ(Launch(CountCycles, 1, 1, 0, nullptr, counts.data(), kNumLooks), cudaSuccess);
  int64_t last = 0;
  for (const int64_t count : counts.Read()) {
    ASSERT_GE(count, last);
    ASSERT_LE(count, last + kMostAtOnce);
    last = count;
  }
  constexpr int64_t kCyclesOfLook = 100;
  EXPECT_EQ(last, (kNumLooks - kNumLeaps) * kCyclesOfLook + kNumLeaps / 2 * kMostAtOnce);
}

}  // namespace
}  // namespace lockstep::cuda
