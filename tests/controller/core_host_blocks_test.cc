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

TEST_F(CoreHostBlocksTest, MoreCopiesThanBlocksCanBeNumberedAreRefused) {
  Start(1);
  auto rank = Hello(0, 1);
  SayLoaded(rank, 30, int64_t{1} << 31);
  EXPECT_THAT(told_.back().message, HasSubstr("Loaded.max_host_blocks 2147483648"));
}

}  // namespace
}  // namespace lockstep::testing
