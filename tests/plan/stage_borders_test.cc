#include "deploy/plan/stage_borders.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/hand_over.h"

namespace lockstep::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kMostBytes = kMostWholeBytesBetweenDevices;

TEST(StageBorders, LieBetweenNodesWhereRanksFillThem) {
  EXPECT_THAT(MostWholeBytesOfBorders({.tp = 8, .pp = 2}, 8), ElementsAre(0));
  EXPECT_THAT(MostWholeBytesOfBorders({.tp = 4, .pp = 2}, 8), ElementsAre(kMostBytes));
  EXPECT_THAT(MostWholeBytesOfBorders({.tp = 4, .pp = 4}, 8),
              ElementsAre(kMostBytes, 0, kMostBytes));
  EXPECT_THAT(MostWholeBytesOfBorders({.tp = 1, .pp = 3}, 1), Each(0));
  EXPECT_TRUE(MostWholeBytesOfBorders({.tp = 8, .pp = 1}, 8).empty());
}

// 450 GB/s inside a node, 50 GB/s of a card.
TEST(StageBorders, SlicesCrossTheNetworkOverAsManyCards) {
  const Interconnect net;
  const double bytes = 1e9;
  const double whole = HandOverSeconds(net, 1, 0, bytes);
  const double sliced = HandOverSeconds(net, 8, 0, bytes);
  EXPECT_NEAR(whole, bytes / 50e9, 1e-4);
  EXPECT_GT(sliced, whole / 8);
  EXPECT_LT(sliced, whole / 8 + bytes / (0.5 * 450e9) + 1e-4) << "and are gathered over NVLink";
}

TEST(StageBorders, ShortMessagesInsideANodeGoWhole) {
  const Interconnect net;
  EXPECT_EQ(HandOverSeconds(net, 8, kMostBytes, 65536), HandOverSeconds(net, 1, kMostBytes, 65536));
  EXPECT_GT(HandOverSeconds(net, 8, 0, 65536), TransferSeconds(net, true, 65536 / 8));
}

// 405B: 8,192 tokens of 16,384 numbers are 512 MiB.
TEST(StageBorders, MemoryIsOfTheLongestMessageOnEitherSide) {
  const int64_t hidden_states = 8192 * 16384;
  const Layout two_nodes{.tp = 8, .pp = 2};
  EXPECT_EQ(HandOverMemoryBytes(two_nodes, 8, 0, hidden_states), int64_t{64} << 20);
  EXPECT_EQ(HandOverMemoryBytes(two_nodes, 8, 1, hidden_states), int64_t{64} << 20);
  const Layout four{.tp = 4, .pp = 4};
  EXPECT_EQ(HandOverMemoryBytes(four, 8, 1, hidden_states), int64_t{256} << 20);
  EXPECT_EQ(HandOverMemoryBytes({.tp = 8, .pp = 1}, 8, 0, hidden_states), 0);
}

}  // namespace
}  // namespace lockstep::plan
