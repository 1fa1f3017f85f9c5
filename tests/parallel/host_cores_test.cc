#include "parallel/host_cores.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Two packages of one node each with two caches of two cores with two hyperthreads; processors
// are numbered as Linux does, second hyperthreads last.
std::vector<HostCore> Server() {
  std::vector<HostCore> cores;
  for (int cpu = 0; cpu < 16; ++cpu) {
    const int core = cpu % 8;
    cores.push_back(
        {.cpu = cpu, .node = core / 4, .cache = core / 2, .core = core % 4, .package = core / 4});
  }
  return cores;
}

std::vector<int> Shares(int rank, int num_ranks, std::vector<HostCore> cores = Server()) {
  return CoresOfRank(std::move(cores), rank, std::vector<int>(static_cast<size_t>(num_ranks), -1));
}

TEST(CoresOfRankTest, RanksGetNeighboursAndShareNothing) {
  EXPECT_EQ(Shares(0, 2), (std::vector<int>{0, 8, 1, 9, 2, 10, 3, 11}));
  EXPECT_EQ(Shares(1, 2), (std::vector<int>{4, 12, 5, 13, 6, 14, 7, 15}));
  EXPECT_EQ(Shares(2, 4), (std::vector<int>{4, 12, 5, 13}));  // one cache
  EXPECT_EQ(Shares(7, 8), (std::vector<int>{7, 15}));         // one core
}

TEST(CoresOfRankTest, EveryProcessorHasOneRank) {
  for (int num_ranks = 2; num_ranks <= 16; ++num_ranks) {
    std::multiset<int> dealt;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const std::vector<int> mine = Shares(rank, num_ranks);
      EXPECT_GE(std::ssize(mine), 16 / num_ranks);
      dealt.insert(mine.begin(), mine.end());
    }
    EXPECT_EQ(dealt.size(), 16u) << num_ranks;
    EXPECT_EQ(std::set<int>(dealt.begin(), dealt.end()).size(), 16u) << num_ranks;
  }
}

TEST(CoresOfRankTest, LeavesAloneWhereNothingIsGained) {
  EXPECT_TRUE(Shares(0, 1).empty());
  EXPECT_TRUE(Shares(0, 17).empty());
  EXPECT_TRUE(Shares(0, 2, {}).empty());
  EXPECT_TRUE(Shares(0, 2, {{.cpu = 0}, {.cpu = 1}}).empty());  // one cache
}

TEST(CoresOfRankTest, RanksStayNearTheirGpus) {
  using Cores = std::vector<int>;
  const Cores both_on_1 = {1, 1};
  EXPECT_EQ(CoresOfRank(Server(), 0, both_on_1), (Cores{4, 12, 5, 13}));
  EXPECT_EQ(CoresOfRank(Server(), 1, both_on_1), (Cores{6, 14, 7, 15}));
  const Cores crossed = {1, 0, 1};
  EXPECT_EQ(CoresOfRank(Server(), 0, crossed), (Cores{4, 12, 5, 13}));
  EXPECT_EQ(CoresOfRank(Server(), 1, crossed), (Cores{0, 8, 1, 9, 2, 10, 3, 11}));
  EXPECT_EQ(CoresOfRank(Server(), 2, crossed), (Cores{6, 14, 7, 15}));
  const Cores alone = {1};
  EXPECT_EQ(CoresOfRank(Server(), 0, alone), (Cores{4, 12, 5, 13, 6, 14, 7, 15}));
}

TEST(CoresOfRankTest, AllSharesAreOfAllCoresWhereOneGpusNodeIsNotKnownOrTooSmall) {
  for (const std::vector<int>& nodes : {std::vector<int>{1, -1}, {1, 2}}) {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(CoresOfRank(Server(), rank, nodes), Shares(rank, 2));
    }
  }
  const std::vector<int> nine_on_1(9, 1);  // of eight processors
  for (int rank = 0; rank < 9; ++rank) {
    EXPECT_EQ(CoresOfRank(Server(), rank, nine_on_1), Shares(rank, 9));
  }
}

class SysfsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / "host_cores_test_sysfs";
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path Cpu(int cpu) const { return root_ / "devices/system/cpu" / absl::StrCat("cpu", cpu); }
  static void Write(const fs::path& file, const std::string& text) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  fs::path root_;
};

TEST_F(SysfsTest, TellsWhatProcessorsShare) {
  const int cpu = FindHostCores(root_).front().cpu;  // one this test may run on
  fs::create_directories(Cpu(cpu) / "node3");
  Write(Cpu(cpu) / "cache/index0/level", "1");
  Write(Cpu(cpu) / "cache/index0/id", "44");
  Write(Cpu(cpu) / "cache/index3/level", "3");
  Write(Cpu(cpu) / "cache/index3/id", "5");
  Write(Cpu(cpu) / "topology/core_id", "7");
  Write(Cpu(cpu) / "topology/physical_package_id", "1");
  const HostCore found = FindHostCores(root_).front();
  EXPECT_EQ(found.node, 3);
  EXPECT_EQ(found.cache, 5);
  EXPECT_EQ(found.core, 7);
  EXPECT_EQ(found.package, 1);
}

TEST_F(SysfsTest, WhatIsNotToldOrNotANumberIsZero) {
  const int cpu = FindHostCores(root_).front().cpu;
  Write(Cpu(cpu) / "topology/core_id", "none");
  Write(Cpu(cpu) / "topology/physical_package_id", "-1");
  const HostCore found = FindHostCores(root_).front();
  EXPECT_EQ(found.node, 0);
  EXPECT_EQ(found.cache, 0);
  EXPECT_EQ(found.core, 0);
  EXPECT_EQ(found.package, 0);
}

TEST(StayOnTest, HoldsForThreadsStartedLater) {
  std::thread([] {  // the test's own thread stays free
    const int cpu = FindHostCores().back().cpu;
    ASSERT_TRUE(StayOn({cpu}).ok());
    std::thread([cpu] { EXPECT_EQ(sched_getcpu(), cpu); }).join();
    EXPECT_EQ(FindHostCores().size(), 1u);
  })
      .join();
}

TEST(StayOnTest, NoProcessorIsRefused) {
  EXPECT_EQ(StayOn({}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep
