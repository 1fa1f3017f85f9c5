#include "kernels/base/usable_cores.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(UsableCoresTest, AreThoseThatAThreadMayRunOn) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(NumUsableCores(), CPU_COUNT(&all));
  std::thread([] {  // the test's own thread stays free
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(NumUsableCores(), 1);
  })
      .join();
}

}  // namespace
}  // namespace lockstep
