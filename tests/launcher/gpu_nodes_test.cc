#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/ranks/device_choice.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

// A host whose GPUs 0 and 1 hang on memory node 1, the others on node 0.
class GpuNodesTest : public ::testing::Test {
 protected:
  GpuNodesTest()
      : sysfs_(fs::path(::testing::TempDir()) / ("gpu_nodes-" + std::to_string(getpid()))) {
    for (int gpu = 0; gpu < 4; ++gpu) {
      const fs::path device = sysfs_ / "bus/pci/devices" / BusId(gpu);
      fs::create_directories(device);
      std::ofstream(device / "numa_node") << (gpu < 2 ? 1 : 0) << "\n";
    }
  }
  ~GpuNodesTest() override { fs::remove_all(sysfs_); }

  static std::string BusId(int gpu) { return "0000:0" + std::to_string(gpu) + ":00.0"; }
  static RankGpus Rank(int node, int place, int num_ranks, int num_gpus) {
    RankGpus rank{.node = node, .host = "a", .place = {place, num_ranks}, .gpus = {}};
    for (int gpu = 0; gpu < num_gpus; ++gpu) {
      rank.gpus.push_back({"GPU-" + std::to_string(gpu), BusId(gpu)});
    }
    return rank;
  }
  std::vector<int> Nodes(const std::vector<RankGpus>& ranks, int rank) const {
    const auto nodes = GpuNodes(ranks, rank, sysfs_);
    EXPECT_TRUE(nodes.ok()) << nodes.status();
    return nodes.value_or(std::vector<int>());
  }
  const fs::path sysfs_;
};

TEST_F(GpuNodesTest, AreThoseOfTheRanksOfAHost) {
  std::vector<RankGpus> ranks;
  for (int place = 0; place < 3; ++place) ranks.push_back(Rank(0, place, 3, 4));
  for (int place = 0; place < 2; ++place) ranks.push_back(Rank(3, place, 2, 4));
  EXPECT_THAT(Nodes(ranks, 1), ElementsAre(1, 1, 0));
  EXPECT_THAT(Nodes(ranks, 4), ElementsAre(1, 1));
}

TEST_F(GpuNodesTest, OfOtherReplicasAreAfterTheirPlaces) {
  const std::vector<RankGpus> second = {Rank(0, 2, 4, 4), Rank(0, 3, 4, 4)};
  EXPECT_THAT(Nodes(second, 0), ElementsAre(1, 1, 0, 0));
}

TEST_F(GpuNodesTest, PlacesOfAnotherNameOfTheHostAreNotItsOwn) {
  EXPECT_THAT(Nodes({Rank(0, 0, 1, 4), Rank(0, 2, 3, 4)}, 0), ElementsAre(1));
}

TEST_F(GpuNodesTest, AreOfTheGpusThatARankSees) {
  std::vector<RankGpus> ranks = {Rank(0, 0, 2, 4), Rank(0, 1, 2, 4)};
  for (int rank = 0; rank < 2; ++rank) ranks[rank].gpus = {ranks[rank].gpus[3 - 2 * rank]};
  EXPECT_THAT(Nodes(ranks, 0), ElementsAre(0, 1));
}

TEST_F(GpuNodesTest, AreNotKnownWithoutGpusOrWhereTheSystemDoesNotTell) {
  EXPECT_THAT(Nodes({Rank(0, 0, 2, 0), Rank(0, 1, 2, 0)}, 0), ElementsAre(-1, -1));
  std::vector<RankGpus> ranks;
  for (int place = 0; place < 6; ++place) ranks.push_back(Rank(0, place, 6, 6));
  EXPECT_THAT(Nodes(ranks, 0), ElementsAre(1, 1, 0, 0, -1, -1));
}

}  // namespace
}  // namespace lockstep
