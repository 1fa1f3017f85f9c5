// What kernels are written in, as far as it can be tested apart from them.
#include "kernels/cuda/device.cuh"

#include <gtest/gtest.h>

#include <climits>

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

}  // namespace
}  // namespace lockstep::cuda
