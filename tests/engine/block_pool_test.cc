#include "runtime/engine/block_pool.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class BlockPoolTest : public ::testing::Test {
 protected:
  ~BlockPoolTest() override { pool_.CheckInvariants(); }

  // Holds `count` blocks for a moment and leaves them cached; the first of them is released first.
  std::vector<int32_t> Cache(int count) {
    std::vector<int32_t> blocks;
    EXPECT_TRUE(pool_.Allocate(count, blocks));
    for (int32_t block : blocks) pool_.Mark(block);
    for (int32_t block : blocks) pool_.Release(block);
    return blocks;
  }

  std::vector<int32_t> evicted_;
  BlockPool pool_{10, [this](int32_t block) { evicted_.push_back(block); }};
};

TEST_F(BlockPoolTest, FreedBlocksReturnToPool) {
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(4));
  EXPECT_EQ(pool_.num_free(), 6);
  EXPECT_EQ(pool_.num_in_use(), 4);
  table.Clear();
  EXPECT_EQ(pool_.num_free(), 10);
  EXPECT_EQ(pool_.num_in_use(), 0);
}

TEST_F(BlockPoolTest, TableReturnsItselfWhenItDies) {
  {
    BlockTable table(pool_);
    ASSERT_TRUE(table.Grow(7));
  }
  EXPECT_EQ(pool_.num_free(), 10);
}

TEST_F(BlockPoolTest, AllocationIsAllOrNothing) {
  BlockTable first(pool_), second(pool_);
  ASSERT_TRUE(first.Grow(7));
  EXPECT_FALSE(second.Grow(4));
  EXPECT_THAT(second.blocks(), IsEmpty());
  EXPECT_EQ(pool_.num_free(), 3);
  EXPECT_TRUE(second.Grow(3));
  EXPECT_TRUE(second.Grow(0));
  EXPECT_FALSE(second.Grow(1));
}

TEST_F(BlockPoolTest, SharedBlockIsFreeWhenTheLastHolderLeaves) {
  BlockTable first(pool_), second(pool_);
  ASSERT_TRUE(first.Grow(1));
  pool_.AddReference(first.blocks()[0]);
  second.Adopt(first.blocks()[0]);
  first.Clear();
  EXPECT_EQ(pool_.num_in_use(), 1);
  second.Clear();
  EXPECT_EQ(pool_.num_free(), 10);
}

TEST_F(BlockPoolTest, MarkedBlocksAreCachedNotFree) {
  Cache(3);
  EXPECT_EQ(pool_.num_free(), 7);
  EXPECT_EQ(pool_.num_cached(), 3);
  EXPECT_EQ(pool_.num_in_use(), 0);
  EXPECT_EQ(pool_.num_available(), 10);
}

TEST_F(BlockPoolTest, CachedBlocksAreEvictedLastAndOldestFirst) {
  const std::vector<int32_t> cached = Cache(3);
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(7));
  EXPECT_THAT(evicted_, IsEmpty());
  ASSERT_TRUE(table.Grow(2));
  EXPECT_THAT(evicted_, ElementsAre(cached[0], cached[1]));
}

TEST_F(BlockPoolTest, UseMakesACachedBlockTheNewest) {
  const std::vector<int32_t> cached = Cache(3);
  pool_.AddReference(cached[0]);
  EXPECT_EQ(pool_.num_cached(), 2);
  pool_.Release(cached[0]);
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(10));
  EXPECT_THAT(evicted_, ElementsAre(cached[1], cached[2], cached[0]));
}

TEST_F(BlockPoolTest, EvictedBlockIsNoLongerMarked) {
  Cache(10);
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(10));
  table.Clear();
  EXPECT_EQ(pool_.num_free(), 10);
}

TEST_F(BlockPoolTest, UnmarkingACachedBlockFreesIt) {
  const std::vector<int32_t> cached = Cache(2);
  pool_.Unmark(cached[1]);
  pool_.Unmark(cached[1]);
  EXPECT_EQ(pool_.num_free(), 9);
  EXPECT_EQ(pool_.num_cached(), 1);
  EXPECT_THAT(evicted_, IsEmpty());
}

TEST_F(BlockPoolTest, TableReleasesItsLastBlockFirst) {
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(3));
  const std::vector<int32_t> blocks(table.blocks().begin(), table.blocks().end());
  for (int32_t block : blocks) pool_.Mark(block);
  table.Clear();
  BlockTable all(pool_);
  ASSERT_TRUE(all.Grow(10));
  EXPECT_THAT(evicted_, ElementsAre(blocks[2], blocks[1], blocks[0]));
}

TEST(BlockPoolDeathTest, LostBlockIsFoundAtTheEnd) {
  EXPECT_DEATH(
      {
        BlockPool pool(10);
        std::vector<int32_t> blocks;
        pool.Allocate(1, blocks);
      },
      "never released");
}

TEST(BlockPoolDeathTest, FreeBlockCannotBeReleasedOrShared) {
  BlockPool pool(10);
  EXPECT_DEATH(pool.Release(3), "block 3");
  EXPECT_DEATH(pool.AddReference(3), "block 3 is free");
}

}  // namespace
}  // namespace lockstep::engine
