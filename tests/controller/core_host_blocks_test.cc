// How many copies of KV blocks hosts keep.
#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/core_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class CoreHostBlocksTest : public CoreTest {};

TEST_F(CoreHostBlocksTest, HostsKeepAsManyCopiesAsTheOneWithTheLeastRoom) {
  Start(1, /*adopt_epochs=*/false, /*tp=*/2);
  const std::array ranks = {Hello(0, 1, 0, 2), Hello(0, 1, 1, 2)};
  SayLoaded(ranks[0], 30, /*max_host_blocks=*/80);
  SayLoaded(ranks[1], 30, /*max_host_blocks=*/70);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->received.back().start().num_host_blocks(), 70);
    v1::FromRank ready;
    ready.mutable_ready();
    Say(rank, ready);
  }
  EXPECT_EQ(told_.back().num_host_blocks, 70);
  Lose(ranks[0]);
  core_->BeginEpoch(0, 2, now_);
  const std::array next = {Hello(0, 2, 0, 2), Hello(0, 2, 1, 2)};
  for (const auto& rank : next) SayLoaded(rank, 30, 69);
  EXPECT_EQ(next[1]->received.back().start().num_host_blocks(), 69) << "those that it has now";
}

// As many as come while the one that reads the fewest weights for each of its blocks does so.
TEST(RankRosterHostBlocks, SomeComeBackBesideEveryStep) {
  struct Shard {
    int64_t weight_bytes = 0;
    int64_t kv_block_bytes = 0;
  };
  const auto prefetched = [](const std::array<Shard, 2>& shards) {
    RankRoster roster({.replica = 0,
                       .grid = *ProcessGrid::Create(2, 1),
                       .epoch = 1,
                       .version = "",
                       .model_fingerprint = "",
                       .limits = {}},
                      absl::UnixEpoch());
    for (int rank = 0; rank < 2; ++rank) {
      v1::Hello hello;
      hello.set_rank(rank);
      hello.set_epoch(1);
      EXPECT_TRUE(roster.Join(std::make_shared<FakePort>(), hello, absl::UnixEpoch()).ok());
      v1::Loaded loaded;
      loaded.set_weight_bytes(shards[rank].weight_bytes);
      loaded.set_kv_block_bytes(shards[rank].kv_block_bytes);
      EXPECT_TRUE(roster.OnLoaded(rank, loaded, absl::UnixEpoch()).ok());
    }
    return roster.FewestPrefetchedBlocks();
  };
  EXPECT_EQ(prefetched({{{64 * 1000, 10}, {64 * 900, 10}}}), 90);
  EXPECT_EQ(prefetched({{{64 * 1000, 20}, {64 * 900, 10}}}), 50);
  EXPECT_EQ(prefetched({{{0, 20}, {64 * 900, 10}}}), 1);
  constexpr int64_t kMany = int64_t{1} << 40;
  EXPECT_EQ(prefetched({{{kMany, 1}, {kMany, 1}}}), int64_t{1} << 30) << "of all that may be";
}

TEST_F(CoreHostBlocksTest, MoreCopiesThanBlocksCanBeNumberedAreRefused) {
  Start(1);
  auto rank = Hello(0, 1);
  SayLoaded(rank, 30, int64_t{1} << 31);
  EXPECT_THAT(told_.back().message, HasSubstr("Loaded.max_host_blocks 2147483648"));
}

}  // namespace
}  // namespace lockstep::testing
