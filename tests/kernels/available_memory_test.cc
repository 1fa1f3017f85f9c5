#include "kernels/base/available_memory.h"

#include "gtest/gtest.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

// A machine with 1,000 KiB to be had, whose files tests write.
class AvailableMemoryTest : public ::testing::Test {
 protected:
  AvailableMemoryTest() {
    directory_.Write("proc/meminfo", "MemTotal: 4000 kB\nMemAvailable: 1000 kB\nBuffers: 1 kB\n");
  }

  void IsInGroup(const char* lines) { directory_.Write("proc/self/cgroup", lines); }
  void Write(const char* file, const char* text) {
    directory_.Write(std::string("cgroup/") + file, text);
  }
  int64_t Available() const {
    return AvailableMemoryBytes(
        {.proc = directory_.path() / "proc", .cgroups = directory_.path() / "cgroup"});
  }

  testing::TempDirectory directory_;
};

TEST_F(AvailableMemoryTest, IsTheMachinesWithoutLimits) {
  EXPECT_EQ(Available(), 1000 * 1024);
  IsInGroup("0::/\n");
  Write("memory.max", "max\n");
  Write("memory.current", "500\n");
  EXPECT_EQ(Available(), 1000 * 1024);
}

TEST_F(AvailableMemoryTest, IsVeryLargeWhereNothingIsTold) {
  EXPECT_EQ(AvailableMemoryBytes({.proc = "/nowhere", .cgroups = "/nowhere"}), int64_t{1} << 60);
}

TEST_F(AvailableMemoryTest, IsWhatAGroupsLimitLeaves) {
  IsInGroup("0::/\n");
  Write("memory.max", "1000\n");
  Write("memory.current", "300\n");
  EXPECT_EQ(Available(), 700);
  Write("memory.current", "1200\n");
  EXPECT_EQ(Available(), 0);
}

TEST_F(AvailableMemoryTest, CountsPageCacheOfFilesAsFree) {
  IsInGroup("0::/\n");
  Write("memory.max", "1000\n");
  Write("memory.current", "900\n");
  Write("memory.stat", "anon 100\nfile 800\nshmem 50\ninactive_file 500\nactive_file 200\n");
  EXPECT_EQ(Available(), 800);
  Write("memory.stat", "inactive_file 5000\nactive_file 0\n");
  EXPECT_EQ(Available(), 1000) << "never more than the limit";
}

TEST_F(AvailableMemoryTest, EveryGroupAboveCounts) {
  IsInGroup("0::/system.slice/job.scope\n");
  Write("system.slice/job.scope/memory.max", "1000\n");
  Write("system.slice/job.scope/memory.current", "100\n");
  EXPECT_EQ(Available(), 900);
  Write("system.slice/memory.max", "800\n");
  Write("system.slice/memory.current", "500\n");
  EXPECT_EQ(Available(), 300);
  Write("memory.max", "700\n");
  Write("memory.current", "600\n");
  EXPECT_EQ(Available(), 100);
}

TEST_F(AvailableMemoryTest, ReadsTheFirstVersionOfCgroupsToo) {
  IsInGroup("5:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/slurm/job_7\n0::/unified\n");
  Write("memory/slurm/memory.limit_in_bytes", "9223372036854771712\n");
  Write("memory/slurm/memory.usage_in_bytes", "5000\n");
  Write("memory/slurm/job_7/memory.limit_in_bytes", "1000\n");
  Write("memory/slurm/job_7/memory.usage_in_bytes", "800\n");
  Write("memory/slurm/job_7/memory.stat",
        "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n");
  EXPECT_EQ(Available(), 600);
}

// Without a cgroup namespace the path is the host's, and the container's own group is mounted as
// the root.
TEST_F(AvailableMemoryTest, AContainersRootIsItsGroup) {
  IsInGroup("4:memory:/docker/0123abcd\n");
  Write("memory/memory.limit_in_bytes", "1000\n");
  Write("memory/memory.usage_in_bytes", "250\n");
  EXPECT_EQ(Available(), 750);
}

}  // namespace
}  // namespace lockstep
