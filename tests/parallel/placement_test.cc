#include "parallel/placement.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

std::vector<RankPlace> Places(std::initializer_list<const char*> hosts) {
  std::vector<RankPlace> places;
  for (const char* host : hosts) places.push_back({host[0], host});
  return places;
}

TEST(PlacementTest, StagesMayCrossNodes) {
  EXPECT_TRUE(CheckTpInsideNodes(*ProcessGrid::Create(2, 2), Places({"a", "a", "b", "b"})).ok());
  EXPECT_TRUE(CheckTpInsideNodes(*ProcessGrid::Create(1, 3), Places({"a", "b", "a"})).ok());
  EXPECT_TRUE(CheckTpInsideNodes(*ProcessGrid::Create(4, 1), Places({"a", "a", "a", "a"})).ok());
}

TEST(PlacementTest, ASplitGroupIsNamedWithItsHosts) {
  const absl::Status status =
      CheckTpInsideNodes(*ProcessGrid::Create(3, 2), Places({"a", "a", "a", "a", "b", "b"}));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("stage 1"));
  EXPECT_THAT(message, HasSubstr("rank 3 on a, ranks 4-5 on b"));
  EXPECT_THAT(message, HasSubstr("--allow-tp-across-nodes"));
}

TEST(PlacementTest, NodesCountNotNames) {
  const std::vector<RankPlace> places = {{0, "localhost"}, {1, "localhost"}};
  EXPECT_FALSE(CheckTpInsideNodes(*ProcessGrid::Create(2, 1), places).ok());
}

TEST(PlacementTest, RunsOfRanksAreShort) {
  EXPECT_EQ(FormatRanks(std::vector<int>{7}), "rank 7");
  EXPECT_EQ(FormatRanks(std::vector<int>{0, 1, 2, 8}), "ranks 0-2, 8");
  EXPECT_EQ(FormatRanks(std::vector<int>{1, 3}), "ranks 1, 3");
}

}  // namespace
}  // namespace lockstep
