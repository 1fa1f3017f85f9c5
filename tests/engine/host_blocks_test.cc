// Cached prefixes that only the host's memory has room for.
#include "runtime/engine/host_blocks.h"

#include <memory>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/engine/prefix_cache.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep::engine {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(HostBlocksTest, TheOneUsedLeastRecentlyGivesWay) {
  std::vector<uint64_t> forgotten;
  HostBlocks blocks(3, [&](uint64_t name) { forgotten.push_back(name); });
  const int32_t first = blocks.Take(11);
  const int32_t second = blocks.Take(22);
  blocks.Take(33);
  EXPECT_EQ(blocks.num_in_use(), 3);
  EXPECT_THAT(forgotten, IsEmpty());
  blocks.Touch(first);
  EXPECT_EQ(blocks.Take(44), second);
  EXPECT_EQ(blocks.NameOf(second), 44u);
  EXPECT_THAT(forgotten, ElementsAre(22));
}

// Blocks of one token, and four of the host's.
class HostPrefixesTest : public ::testing::Test {
 protected:
  using Tokens = std::vector<int32_t>;
  static constexpr int32_t kNone = PrefixCache::kNoBlock;

  // Computes `tokens` in fresh blocks, which stay held until Release().
  std::vector<int32_t> Compute(const Tokens& tokens) {
    tables_.push_back(std::make_unique<BlockTable>(pool_));
    EXPECT_TRUE(tables_.back()->Grow(std::ssize(tokens)));
    const std::span<const int32_t> blocks = tables_.back()->blocks();
    PrefixCache::Node node = PrefixCache::kRoot;
    for (size_t i = 0; i < tokens.size(); ++i) {
      node = cache_.Register("", node, std::span(tokens).subspan(i, 1), blocks[i]);
    }
    return {blocks.begin(), blocks.end()};
  }
  void Release() { tables_.clear(); }
  // Others take all blocks.
  void EvictAll() {
    BlockTable others(pool_);
    EXPECT_TRUE(others.Grow(pool_.num_available()));
    cache_.CheckInvariants();
  }
  PrefixCache::Match Find(const Tokens& tokens) { return cache_.Lookup("", tokens, 100); }

  BlockPool pool_{6, [this](int32_t block) { cache_.Evict(block); },
                  [this](int32_t block) { return cache_.Keeps(block); }};
  PrefixCache cache_{pool_, 1, /*num_host_blocks=*/4};
  std::vector<std::unique_ptr<BlockTable>> tables_;
};

TEST_F(HostPrefixesTest, NamedBlocksAreOffloadedOnce) {
  const auto blocks = Compute({1, 2});
  const std::vector<BlockCopy> copies = cache_.TakeOffloads(100);
  ASSERT_THAT(copies, SizeIs(2));
  EXPECT_EQ(copies[0].block, blocks[0]);
  EXPECT_EQ(copies[1].block, blocks[1]);
  EXPECT_NE(copies[0].host_block, copies[1].host_block);
  Compute({1, 2});  // twins have no copies of their own
  Release();
  EXPECT_THAT(cache_.TakeOffloads(100), IsEmpty());
  cache_.CheckInvariants();
}

TEST_F(HostPrefixesTest, NoMoreAreOffloadedAtOnceThanAskedFor) {
  const auto blocks = Compute({1, 2, 3});
  EXPECT_THAT(cache_.TakeOffloads(2), SizeIs(2));
  EXPECT_THAT(cache_.TakeOffloads(2), ElementsAre(Field(&BlockCopy::block, blocks[2])));
}

TEST_F(HostPrefixesTest, NoCopyOfACallGivesWayToAnother) {
  Compute({1, 2, 3, 4, 5, 6});
  std::set<int32_t> host_blocks;
  for (const BlockCopy& copy : cache_.TakeOffloads(100)) host_blocks.insert(copy.host_block);
  EXPECT_EQ(host_blocks.size(), 4u);
  EXPECT_THAT(cache_.TakeOffloads(100), SizeIs(2));
  cache_.CheckInvariants();
}

TEST_F(HostPrefixesTest, APrefixIsFoundOnTheHostWhenItsBlocksAreGone) {
  Compute({1, 2, 3});
  const std::vector<BlockCopy> copies = cache_.TakeOffloads(100);
  Release();
  EvictAll();
  const PrefixCache::Match match = Find({1, 2, 3});
  EXPECT_THAT(match.blocks, ElementsAre(kNone, kNone, kNone));
  EXPECT_THAT(match.host_blocks,
              ElementsAre(copies[0].host_block, copies[1].host_block, copies[2].host_block));
  EXPECT_EQ(match.num_to_restore(), 3);
}

TEST_F(HostPrefixesTest, WhatWasNotOffloadedIsForgotten) {
  Compute({1, 2, 3});
  cache_.TakeOffloads(2);
  Release();
  EvictAll();
  EXPECT_EQ(Find({1, 2, 3}).size(), 2);
  EXPECT_THAT(cache_.TakeOffloads(100), IsEmpty()) << "a block that others have";
}

TEST_F(HostPrefixesTest, ARestoredBlockHasItsNameAgain) {
  Compute({1});
  const int32_t host_block = cache_.TakeOffloads(100)[0].host_block;
  Release();
  EvictAll();
  BlockTable table(pool_);
  ASSERT_TRUE(table.Grow(1));
  cache_.Restore(host_block, table.blocks()[0]);
  EXPECT_THAT(Find({1}).blocks, ElementsAre(table.blocks()[0]));
  table.Clear();
  EXPECT_EQ(pool_.num_cached(), 1);
  EvictAll();
  EXPECT_THAT(Find({1}).host_blocks, ElementsAre(host_block));
}

TEST_F(HostPrefixesTest, WhoComputesItAgainGivesItTheBlock) {
  Compute({1});
  cache_.TakeOffloads(100);
  Release();
  EvictAll();
  const auto again = Compute({1, 2});
  EXPECT_THAT(Find({1, 2}).blocks, ElementsAre(again[0], again[1]));
  EXPECT_THAT(cache_.TakeOffloads(100), ElementsAre(Field(&BlockCopy::block, again[1])));
  cache_.CheckInvariants();
}

// The end of a chain goes first.
TEST_F(HostPrefixesTest, CopiesAgeAsTheirBlocksAreReleased) {
  Compute({1, 2, 3});
  cache_.TakeOffloads(100);
  Release();
  EvictAll();
  Compute({7, 8});  // there is room for one more
  cache_.TakeOffloads(100);
  EXPECT_EQ(Find({1, 2, 3}).size(), 2);
}

// The host has fewer blocks than the cache.
TEST_F(HostPrefixesTest, ACopyThatGaveWayIsNotMadeAgain) {
  Compute({1});
  cache_.TakeOffloads(100);
  auto kept = std::move(tables_);
  tables_.clear();
  for (int32_t token = 2; token <= 5; ++token) {  // of which the host has room for four
    Compute({token});
    cache_.TakeOffloads(100);
    Release();
  }
  EXPECT_THAT(Find({1}).host_blocks, ElementsAre(kNone));
  kept.clear();
  EXPECT_THAT(cache_.TakeOffloads(100), IsEmpty());
}

TEST_F(HostPrefixesTest, UnlessTheHostHasMoreBlocksThanTheCache) {
  cache_.SetHostBlocks(7);
  const auto old = Compute({1});
  cache_.TakeOffloads(100);
  auto kept = std::move(tables_);
  tables_.clear();
  for (int32_t token = 2; token <= 8; ++token) {
    Compute({token});
    cache_.TakeOffloads(100);
    Release();
  }
  EXPECT_THAT(Find({1}).host_blocks, ElementsAre(kNone));
  kept.clear();
  EXPECT_THAT(cache_.TakeOffloads(100), ElementsAre(Field(&BlockCopy::block, old[0])));
  EXPECT_NE(Find({1}).host_blocks[0], kNone);
  cache_.CheckInvariants();
}

TEST_F(HostPrefixesTest, ClearForgetsCopiesToo) {
  Compute({1, 2});
  cache_.TakeOffloads(1);
  Release();
  EvictAll();
  cache_.Clear();
  EXPECT_THAT(Find({1, 2}).nodes, IsEmpty());
  EXPECT_EQ(cache_.host_blocks()->num_in_use(), 0);
  EXPECT_THAT(cache_.TakeOffloads(100), IsEmpty());
  Compute({1});
  EXPECT_THAT(cache_.TakeOffloads(100), SizeIs(1));
}

class HostTierTest : public EngineTest {
 protected:
  HostTierTest() {
    config_.num_host_blocks = 20;
    config_.max_batched_tokens = 40;
    Start(config_);
  }

  // Alone, and with one token.
  std::vector<StepPlan> RunPrompt(EngineRequest request) {
    Add(std::move(request));
    std::vector<StepPlan> plans;
    while (!engine_->Idle()) {
      plans.push_back(Next());
      Commit();
    }
    return plans;
  }
  EngineRequest Other(uint64_t id, int num_tokens, int32_t first) {
    EngineRequest request = Prompt(id, num_tokens, 1);
    std::iota(request.prompt.begin(), request.prompt.end(), first);
    return request;
  }

  EngineConfig config_ = SmallConfig();
};

TEST_F(HostTierTest, APromptWhoseBlocksAreGoneComesFromTheHost) {
  RunPrompt(Prompt(1, 17, 1));  // four full blocks, and a token
  const std::vector<StepPlan> others = RunPrompt(Other(2, 37, 50));
  EXPECT_THAT(others.front().offloaded, SizeIs(4)) << "in the plan after the one that wrote them";
  EXPECT_THAT(others.front().restored, IsEmpty());

  Add(Prompt(4, 17, 1));
  const StepPlan plan = Next();
  ASSERT_THAT(plan.restored, SizeIs(4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.restored[i].block, plan.grants[0].blocks[i]);
    EXPECT_EQ(plan.restored[i].host_block, others.front().offloaded[i].host_block);
  }
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 16u);
  EXPECT_THAT(plan.work, ElementsAre(Chunk(plan.work[0].slot, 1, true)));
  const std::vector<EngineEvent> events = Commit();
  EXPECT_EQ(events.back().num_cached_prompt_tokens, 16u);
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.blocks_restored, 4u);
  EXPECT_EQ(stats.host_blocks_total, 20);
  EXPECT_GE(stats.host_blocks_in_use, 4);
}

TEST_F(HostTierTest, WhoComesAfterSharesWhatWasRestored) {
  RunPrompt(Prompt(1, 17, 1));
  RunPrompt(Other(2, 37, 50));
  Add(Prompt(4, 17, 1));
  Add(Prompt(7, 17, 1));
  const StepPlan plan = Next();
  EXPECT_THAT(plan.restored, SizeIs(4));
  ASSERT_THAT(plan.grants, SizeIs(2));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(plan.grants[0].blocks[i], plan.grants[1].blocks[i]);
}

// Prompts of which nothing is left on the device, and one that decodes while they come back.
class PrefetchTest : public HostTierTest {
 protected:
  PrefetchTest() {
    config_.num_blocks = 40;
    config_.num_host_blocks = 200;
    config_.max_num_seqs = 8;
    config_.max_model_len = 150;
    config_.max_batched_tokens = 150;
    config_.num_prefetched_blocks = 3;
  }
  void Begin() {
    Start(config_);
    for (int i = 0; i < 3; ++i) RunPrompt(Of(i, 21, 20 + i));  // five full blocks each
    RunPrompt(Of(3, 150 - 1, 10));                             // others take nearly all blocks
    RunPrompt(Of(4, 8, 11));
    AddDecoding();
  }
  void AddDecoding() {
    EngineRequest decoding = Of(kDecoding, 2, 12);
    decoding.sampling.max_tokens = 60;
    Add(std::move(decoding));
    Step();
  }
  // Of one token, over and over.
  EngineRequest Of(uint64_t id, int num_tokens, int32_t token) {
    EngineRequest request = Prompt(id, 1, 1);
    request.prompt.assign(num_tokens, token);
    return request;
  }
  std::vector<StepPlan> NextFew(int count) {
    std::vector<StepPlan> plans;
    for (int i = 0; i < count; ++i) {
      plans.push_back(Next());
      Commit();
    }
    return plans;
  }

  static constexpr uint64_t kDecoding = 10;
};

TEST_F(PrefetchTest, BlocksComeBackBesideTheStepsOfOthers) {
  Begin();
  Add(Of(20, 21, 20));
  const std::vector<StepPlan> plans = NextFew(3);
  EXPECT_THAT(plans[0].prefetched, SizeIs(3));
  EXPECT_THAT(plans[0].opened, IsEmpty());
  EXPECT_THAT(plans[0].work, SizeIs(1));
  EXPECT_THAT(plans[1].prefetched, SizeIs(2));
  EXPECT_THAT(plans[1].opened, IsEmpty());
  EXPECT_THAT(plans[1].work, SizeIs(1));
  ASSERT_THAT(plans[2].opened, SizeIs(1));
  EXPECT_EQ(plans[2].opened[0].num_computed_tokens, 20u);
  std::vector<int32_t> came;
  for (const StepPlan& plan : plans) {
    EXPECT_THAT(plan.restored, IsEmpty());
    for (const BlockCopy& copy : plan.prefetched) came.push_back(copy.block);
  }
  const auto grant = std::ranges::find(plans[2].grants, plans[2].opened[0].slot, &BlockGrant::slot);
  ASSERT_NE(grant, plans[2].grants.end());
  std::vector<int32_t> granted = grant->blocks;
  granted.resize(came.size());
  EXPECT_EQ(granted, came);
  EXPECT_EQ(engine_->Stats().blocks_restored, 5u);
}

TEST_F(PrefetchTest, MoreOfThemBesideLongSteps) {
  config_.max_batched_tokens = 2000;
  config_.max_model_len = 2000;
  config_.num_blocks = 400;
  config_.num_host_blocks = 2000;
  Start(config_);
  RunPrompt(Of(1, 81, 20));
  for (int i = 0; i < 3; ++i) RunPrompt(Of(2 + i, 1000, 30 + i));
  AddDecoding();
  EngineRequest first = Of(20, 600, 40);  // with the token that is decoded, 2 x 256 and some
  first.priority = -1;
  Add(std::move(first));
  Add(Of(21, 81, 20));
  EXPECT_THAT(Next().prefetched, SizeIs(2 * 3));
  Commit();
  EXPECT_THAT(Next().prefetched, SizeIs(3));
}

TEST_F(PrefetchTest, OfSeveralThatWaitTheFirstComesFirst) {
  config_.num_prefetched_blocks = 7;
  Begin();
  Add(Of(20, 21, 20));
  Add(Of(21, 21, 21));
  Add(Of(22, 21, 22));
  const std::vector<StepPlan> plans = NextFew(4);
  EXPECT_THAT(plans[0].prefetched, SizeIs(7));
  EXPECT_THAT(plans[0].opened, IsEmpty());
  EXPECT_THAT(plans[1].opened, SizeIs(1));
  EXPECT_THAT(plans[1].prefetched, SizeIs(7));
  EXPECT_THAT(plans[2].opened, SizeIs(1));
  EXPECT_THAT(plans[2].prefetched, SizeIs(1));
  EXPECT_THAT(plans[3].opened, SizeIs(1));
  EXPECT_THAT(plans[3].prefetched, IsEmpty());
}

// They would grow into the room that it needs.
TEST_F(PrefetchTest, NobodyPassesMeanwhile) {
  Begin();
  Add(Of(20, 21, 20));
  Add(Of(21, 9, 50));
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(Next().opened, IsEmpty());
    Commit();
  }
  const StepPlan plan = Next();
  ASSERT_THAT(plan.opened, SizeIs(2));
  EXPECT_EQ(plan.opened[0].tokens.front(), 20);
}

// Who found no room, and then does, is not for other replicas while its blocks come.
TEST_F(PrefetchTest, WhoAwaitsItsBlocksLooksForNoRoomElsewhere) {
  Begin();
  EngineRequest large = Of(19, 4 * 32 + 1, 60);
  large.sampling.max_tokens = 10;
  Add(std::move(large));
  Step();
  Add(Of(20, 21, 20));
  Step();
  ASSERT_NE(engine_->StrandedRequest(), nullptr);
  engine_->Abort(19);
  EXPECT_THAT(Next().prefetched, SizeIs(3));
  EXPECT_EQ(engine_->StrandedRequest(), nullptr);
}

// Whoever runs would wait for them; with nobody there, all come at once.
TEST_F(PrefetchTest, WhoIsAloneDoesNotWait) {
  Begin();
  engine_->Abort(kDecoding);
  Add(Of(20, 21, 20));
  const StepPlan plan = Next();
  EXPECT_THAT(plan.restored, SizeIs(5));
  EXPECT_THAT(plan.prefetched, IsEmpty());
  EXPECT_THAT(plan.opened, SizeIs(1));
}

// Nor beside a prompt of many steps, which short ones pass.
TEST_F(PrefetchTest, NorWhereShortOnesPassALongPrompt) {
  config_.num_blocks = 300;
  config_.num_host_blocks = 1000;
  config_.max_model_len = 600;
  config_.max_queued_requests = 100;
  config_.max_batched_tokens = 24;
  config_.num_prefetched_blocks = 4;
  Start(config_);
  RunPrompt(Of(1, 193, 10));  // 48 full blocks
  for (int32_t token = 30; token < 33; ++token) RunPrompt(Of(token, 550, token));
  Add(Of(100, 500, 40));  // many steps
  Step();
  EngineRequest waiting = Of(101, 204, 10);
  waiting.priority = -1;
  Add(std::move(waiting));
  for (int32_t token = 50; token < 90; ++token) Add(Of(100 + token, 6, token));
  for (const StepPlan& plan : NextFew(48 / 4)) EXPECT_THAT(plan.opened, IsEmpty());
  EXPECT_THAT(Next().opened, Contains(Field(&SlotOpen::num_computed_tokens, 192u)));
  Commit();
  while (!engine_->Idle()) Step();
}

TEST_F(HostTierTest, WithoutAPrefixCacheNothingIsCopied) {
  config_.enable_prefix_cache = false;
  Start(config_);
  RunPrompt(Prompt(1, 17, 1));
  for (const StepPlan& plan : RunPrompt(Prompt(4, 17, 1))) {
    EXPECT_THAT(plan.offloaded, IsEmpty());
    EXPECT_THAT(plan.restored, IsEmpty());
  }
  EXPECT_EQ(engine_->Stats().host_blocks_total, 0);
}

TEST_F(HostTierTest, ALostReplicaTakesItsCopiesAlong) {
  RunPrompt(Prompt(1, 17, 1));
  RunPrompt(Other(2, 37, 50));
  engine_->ResetReplica();
  EXPECT_EQ(engine_->Stats().host_blocks_in_use, 0);
  Add(Prompt(4, 17, 1));
  EXPECT_THAT(Next().restored, IsEmpty());
}

TEST_F(HostTierTest, CopiesThatWereStillToBeMadeAreForgottenWithTheReplica) {
  Add(Prompt(1, 17, 1));
  Next();
  EXPECT_TRUE(NothingToDo());
  engine_->ResetReplica();
  EXPECT_THAT(Next().offloaded, IsEmpty());
}

}  // namespace
}  // namespace lockstep::engine
