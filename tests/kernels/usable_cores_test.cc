#include "kernels/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

TEST(UsableCoresTest, AreThoseThatAThreadMayRunOn) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const int num_cores = CPU_COUNT(&all);
  EXPECT_EQ(NumUsableCores(), std::min(num_cores, CoresOfQuota().value_or(num_cores)));
  std::thread([] {  // the test's own thread stays free
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(NumUsableCores(), 1);
  })
      .join();
}

// Whose files tests write.
class CoresOfQuotaTest : public ::testing::Test {
 protected:
  SystemFiles Files() const {
    return {.proc = directory_ / "proc", .cgroups = directory_ / "cgroup"};
  }
  std::optional<int> Cores() const { return CoresOfQuota(Files()); }
  testing::TempDirectory directory_;
};

TEST_F(CoresOfQuotaTest, AreRoundedUpAndTheFewestOfAllGroupsAbove) {
  EXPECT_EQ(Cores(), std::nullopt);
  directory_.Write("proc/self/cgroup", "0::/pods/a\n");
  directory_.Write("cgroup/pods/a/cpu.max", "max 100000\n");
  EXPECT_EQ(Cores(), std::nullopt);
  directory_.Write("cgroup/pods/cpu.max", "350000 100000\n");
  EXPECT_EQ(Cores(), 4);
  directory_.Write("cgroup/pods/a/cpu.max", "5000 100000\n");
  EXPECT_EQ(Cores(), 1);
  EXPECT_EQ(NumUsableCores(Files()), 1);
  directory_.Write("cgroup/pods/a/cpu.max", "nonsense\n");
  EXPECT_EQ(Cores(), 4);
}

TEST_F(CoresOfQuotaTest, AreReadOfTheFirstVersionToo) {
  directory_.Write("proc/self/cgroup", "3:memory:/b\n2:cpu,cpuacct:/a\n");
  directory_.Write("cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  directory_.Write("cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Cores(), std::nullopt);
  directory_.Write("cgroup/cpu/a/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(Cores(), 2);
}

}  // namespace
}  // namespace lockstep
