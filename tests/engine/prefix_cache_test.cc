#include "runtime/engine/prefix_cache.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kBlockSize = 4;
constexpr int64_t kNoLimit = 100;

class PrefixCacheTest : public ::testing::Test {
 protected:
  using Tokens = std::vector<int32_t>;

  // Computes `tokens` in fresh blocks and names the full ones. Blocks stay held until Release().
  std::vector<int32_t> Compute(const Tokens& tokens, std::string_view salt = "") {
    auto table = std::make_unique<BlockTable>(pool_);
    EXPECT_TRUE(table->Grow((tokens.size() + kBlockSize - 1) / kBlockSize));
    const std::vector<int32_t> blocks(table->blocks().begin(), table->blocks().end());
    PrefixCache::Node node = PrefixCache::kRoot;
    for (size_t i = 0; (i + 1) * kBlockSize <= tokens.size(); ++i) {
      const std::span<const int32_t> all(tokens);
      node = cache_.Register(salt, node, all.subspan(i * kBlockSize, kBlockSize), blocks[i]);
    }
    tables_.push_back(std::move(table));
    return blocks;
  }
  void Release() { tables_.clear(); }
  std::vector<int32_t> Find(const Tokens& tokens, std::string_view salt = "",
                            int64_t max_blocks = kNoLimit) {
    return cache_.Lookup(salt, tokens, max_blocks).blocks;
  }

  BlockPool pool_{10, [this](int32_t block) { cache_.Evict(block); },
                  [this](int32_t block) { return cache_.Keeps(block); }};
  PrefixCache cache_{pool_, kBlockSize};
  std::vector<std::unique_ptr<BlockTable>> tables_;
};

TEST_F(PrefixCacheTest, FindsTheLongestChainOfFullBlocks) {
  const auto blocks = Compute({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), ElementsAre(blocks[0], blocks[1]));
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}), ElementsAre(blocks[0], blocks[1]));
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 0}), ElementsAre(blocks[0]));
  EXPECT_THAT(Find({1, 2, 3, 4, 5}), ElementsAre(blocks[0]));
  EXPECT_THAT(Find({1, 2, 3}), IsEmpty());
  EXPECT_THAT(Find({0, 2, 3, 4, 5, 6, 7, 8}), IsEmpty());
}

TEST_F(PrefixCacheTest, SameTokensAfterAnotherBeginningAreAnotherBlock) {
  Compute({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_THAT(Find({5, 6, 7, 8}), IsEmpty());
  const auto other = Compute({9, 9, 9, 9, 5, 6, 7, 8});
  EXPECT_THAT(Find({9, 9, 9, 9, 5, 6, 7, 8}), ElementsAre(other[0], other[1]));
}

TEST_F(PrefixCacheTest, SaltsDoNotMeet) {
  const auto mine = Compute({1, 2, 3, 4}, "me");
  EXPECT_THAT(Find({1, 2, 3, 4}), IsEmpty());
  EXPECT_THAT(Find({1, 2, 3, 4}, "you"), IsEmpty());
  EXPECT_THAT(Find({1, 2, 3, 4}, "me"), ElementsAre(mine[0]));
  const auto plain = Compute({1, 2, 3, 4});
  EXPECT_THAT(Find({1, 2, 3, 4}), ElementsAre(plain[0]));
}

TEST_F(PrefixCacheTest, LookupStopsAtTheLimit) {
  const auto blocks = Compute({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}, "", 1), ElementsAre(blocks[0]));
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}, "", 0), IsEmpty());
}

TEST_F(PrefixCacheTest, TheFirstBlockOfAPrefixKeepsTheName) {
  const auto first = Compute({1, 2, 3, 4});
  const auto second = Compute({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}), ElementsAre(first[0], second[1]));
  Release();
  EXPECT_EQ(pool_.num_cached(), 2);  // the copy is worth nothing
}

TEST_F(PrefixCacheTest, AHeldCopyTakesTheNameOfWhatIsEvicted) {
  Compute({1, 2, 3, 4});
  tables_.clear();
  const auto twin = Compute({1, 2, 3, 4, 5, 6, 7, 8});
  const auto third = Compute({1, 2, 3, 4});
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(7));  // the first, too
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}), ElementsAre(third[0], twin[1]));
  tables_.pop_back();  // it has the name: it is cached
  EXPECT_EQ(pool_.num_cached(), 1);
  ASSERT_TRUE(table.Grow(1));
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}), ElementsAre(twin[0], twin[1]));
  tables_.pop_back();
  EXPECT_EQ(pool_.num_cached(), 2);
  ASSERT_TRUE(table.Grow(2));
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}), IsEmpty());
}

TEST_F(PrefixCacheTest, EvictedBlockIsNeverFound) {
  Compute({1, 2, 3, 4, 5, 6, 7, 8});
  Release();
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(9));  // takes the second block: the last one released is not the first
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6, 7, 8}).size(), 1u);
  ASSERT_TRUE(table.Grow(1));
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}), IsEmpty());
}

TEST_F(PrefixCacheTest, ChildOfAnEvictedBlockIsNotTakenForTheChildOfItsSuccessor) {
  const auto old = Compute({1, 2, 3, 4, 5, 6, 7, 8});
  cache_.Evict(old[0]);
  pool_.Unmark(old[0]);
  const auto fresh = Compute({1, 2, 3, 4});
  EXPECT_THAT(Find({1, 2, 3, 4, 5, 6, 7, 8}), ElementsAre(fresh[0]));
}

TEST_F(PrefixCacheTest, ClearForgetsEverything) {
  Compute({1, 2, 3, 4, 5, 6, 7, 8});
  Release();
  Compute({9, 9, 9, 9});
  cache_.Clear();
  EXPECT_THAT(Find({1, 2, 3, 4}), IsEmpty());
  EXPECT_THAT(Find({9, 9, 9, 9}), IsEmpty());
  EXPECT_EQ(pool_.num_cached(), 0);
  Release();
  EXPECT_EQ(pool_.num_free(), 10);
}

// With few hash values almost everything collides: entries are missed, none is ever mistaken for
// another. All prefixes of up to four tokens out of two, looked up and registered again and again.
TEST(PrefixCacheCollisionTest, CollisionCostsAMissNeverAWrongBlock) {
  for (const uint64_t hash_mask : {0, 1, 3, 7, 15}) {
    BlockPool pool(1000);
    PrefixCache cache(pool, 1, /*num_host_blocks=*/0, hash_mask);
    BlockTable table(pool);
    ASSERT_TRUE(table.Grow(1000));
    std::vector<std::string> content(1000);  // by block: the salt and the prefix
    int next_block = 0;
    int64_t num_found = 0;
    for (int i = 0; i < 100; ++i) {
      const std::vector<int32_t> tokens = {i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3 & 1};
      const std::string salt = i >> 4 & 1 ? "a" : "b";
      const auto content_to = [&](size_t k) {
        return salt + ::testing::PrintToString(std::vector(tokens.begin(), tokens.begin() + k + 1));
      };
      const auto match = cache.Lookup(salt, tokens, 4);
      for (size_t k = 0; k < match.blocks.size(); ++k, ++num_found) {
        ASSERT_EQ(content[match.blocks[k]], content_to(k)) << "mask " << hash_mask;
      }
      PrefixCache::Node node = match.last();
      for (size_t k = match.blocks.size(); k < tokens.size(); ++k) {
        const int32_t block = table.blocks()[next_block++];
        content[block] = content_to(k);
        node = cache.Register(salt, node, std::span(tokens).subspan(k, 1), block);
      }
    }
    EXPECT_GT(num_found, 0);
  }
}

}  // namespace
}  // namespace lockstep::engine
