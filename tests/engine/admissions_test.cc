// Who is admitted next to whom, and what leaves for another engine.
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/engine_fixture.h"

namespace lockstep::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AdmissionsTest : public EngineTest {
 protected:
  AdmissionsTest() {
    EngineConfig config = SmallConfig();
    config.max_batched_tokens = 40;
    config.max_num_seqs = 8;
    Start(config);
  }
};

TEST_F(AdmissionsTest, WhoGoesBeforeAPromptUnderWayGetsItsTokensFirst) {
  Start(SmallConfig());
  EngineRequest patient = Prompt(1, 29, 2);
  patient.priority = 1;
  Add(patient);
  Next();
  Add(Prompt(2, 8, 1));  // the other's last step would leave it three
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 8, true), Chunk(0, 8, false)));
}

TEST_F(AdmissionsTest, APromptOfManyStepsLetsShortOnesPass) {
  Start(SmallConfig());
  Add(Prompt(1, 34, 2));
  Next();
  Add(Prompt(2, 3, 1));
  Add(Prompt(5, 2, 1));  // not both in a quarter of sixteen tokens
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 3, true), Chunk(0, 13, false)));
}

TEST_F(AdmissionsTest, APromptThatTakesMoreThanItsShareDoesNotPass) {
  Start(SmallConfig());
  Add(Prompt(1, 34, 2));
  Next();
  Add(Prompt(2, 5, 1));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 16, false)));
}

// Long ones that wait are passed, too, in whatever order they stand.
TEST_F(AdmissionsTest, ShortPromptsPassAllLongOnes) {
  EngineConfig config = SmallConfig();
  config.num_blocks = 64;
  Start(config);
  Add(Prompt(1, 34, 2));
  Next();
  Add(Prompt(2, 38, 2));
  Add(Prompt(3, 37, 2));
  Add(Prompt(4, 3, 1));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(1, 3, true), Chunk(0, 13, false)));
  Commit();
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 5, true), Chunk(2, 11, false)))
      << "the first that was passed is the next";
}

TEST_F(AdmissionsTest, WhoIsPassedKeepsItsBlocks) {
  EngineConfig config = SmallConfig();
  for (const auto& [num_blocks, passes] : {std::pair(9 + 10 + 1 + 1, true), {9 + 10 + 1, false}}) {
    config.num_blocks = num_blocks;
    Start(config);
    Add(Prompt(1, 34, 2));  // nine blocks
    Next();
    Add(Prompt(2, 38, 2));
    Add(Prompt(3, 3, 1));
    EXPECT_EQ(Next().work.size(), passes ? 2u : 1u) << num_blocks;
  }
}

TEST_F(AdmissionsTest, WhoIsPassedKeepsItsSlot) {
  EngineConfig config = SmallConfig();
  config.num_blocks = 64;
  for (const int num_slots : {3, 2}) {
    config.max_num_seqs = num_slots;
    Start(config);
    Add(Prompt(1, 34, 2));
    Next();
    Add(Prompt(2, 38, 2));
    Add(Prompt(3, 3, 1));
    EXPECT_EQ(Next().work.size(), num_slots == 3 ? 2u : 1u);
  }
}

TEST_F(AdmissionsTest, WhoFindsNoRoomHoldsUpNoPromptUnderWay) {
  Start(SmallConfig());
  EngineRequest patient = Prompt(1, 34, 2);
  patient.priority = 1;
  Add(patient);
  Next();
  Add(Prompt(2, 12, 1));  // three blocks; one is left
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 16, false)));
}

TEST_F(AdmissionsTest, WhatOneComputesOthersFindInTheNextPlan) {
  Add(Prompt(1, 13, 1));
  Add(Prompt(4, 13, 1));  // all of it but a token
  Add(Prompt(5, 5, 1));   // overtakes nobody
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 13, true)));
  const StepPlan plan = Next();
  ASSERT_THAT(plan.opened, SizeIs(2));
  EXPECT_EQ(plan.opened[0].num_computed_tokens, 12u);
  EXPECT_EQ(plan.opened[1].num_computed_tokens, 0u);
}

TEST_F(AdmissionsTest, NobodyWaitsForWhatWasComputedBefore) {
  Start(SmallConfig());
  Add(Prompt(1, 20, 1));
  Add(Prompt(4, 20, 1));
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 16, false)));
  // Of what the other lacks then, none is computed.
  EXPECT_THAT(Next().work, ElementsAre(Chunk(0, 4, true), Chunk(1, 4, true)));
}

TEST_F(AdmissionsTest, ForLittleNobodyWaits) {
  Add(Prompt(1, 4, 1));
  Add(Prompt(4, 12, 1));  // of which eight tokens are computed by nobody
  EXPECT_THAT(Next().opened, SizeIs(2));
}

TEST_F(AdmissionsTest, NobodyWaitsForTokensThatAreNotItsOwn) {
  Add(Prompt(1, 12, 1));
  EngineRequest salted = Prompt(4, 12, 1);
  salted.cache_salt = "other";
  Add(salted);
  EngineRequest differs = Prompt(7, 12, 1);
  differs.prompt[3] = 99;
  Add(differs);
  EXPECT_THAT(Next().opened, SizeIs(3));
}

TEST_F(AdmissionsTest, NoBlockIsKeptForWhoHasAllThatItCanNeed) {
  for (uint64_t id = 1; id <= 8; ++id) Add(Prompt(id, 2, 2));  // one block, to the end
  Next();
  EXPECT_EQ(engine_->Stats().num_running, 8);  // of ten blocks
}

TEST_F(AdmissionsTest, ABlockIsKeptForWhoGrows) {
  for (uint64_t id = 1; id <= 8; ++id) Add(Prompt(id, 3, 3));
  Step();
  EXPECT_EQ(engine_->Stats().num_running, 5);
  Step();
  Step();
  EXPECT_EQ(engine_->Stats().num_preemptions, 0u);
}

// Both compute the same, side by side; the first one's blocks have the names.
TEST_F(AdmissionsTest, WhatARunningOutputHoldsIsFoundAfterItsTwinIsEvicted) {
  Add(Prompt(1, 4, 5));
  Add(Prompt(4, 4, 8));
  std::vector<int32_t> text = Prompt(1, 4).prompt;
  for (const int32_t token : {51, 52, 53, 54, 55}) {
    Step(token);
    text.push_back(token);
  }
  ASSERT_EQ(engine_->Stats().num_running, 1);
  EXPECT_EQ(engine_->Stats().blocks_cached, 2);
  Add(Prompt(2, 28, 1));  // takes all other blocks
  Step(56);
  engine_->Abort(4);
  EngineRequest next = Prompt(3, 1);
  next.prompt = text;
  Add(next);
  EXPECT_EQ(Next().opened[0].num_computed_tokens, 8u);
}

using MovesTest = AdmissionsTest;

TEST_F(MovesTest, WhoComesFromAnotherReplicaStandsWhereItsNumberIs) {
  Add(Prompt(1, 4));
  Step();
  engine_->ResetReplica();
  std::vector<UnfinishedRequest> leaving = engine_->Evacuate();
  ASSERT_THAT(leaving, SizeIs(1));
  EngineConfig config = SmallConfig();
  config.max_num_seqs = 1;
  Start(config);
  Add(Prompt(2, 4, 1));
  Step();
  Add(Prompt(3, 4));
  Add(Prompt(5, 4));
  engine_->Adopt(std::move(leaving[0]));
  EXPECT_THAT(Next().opened[0].tokens, SizeIs(5)) << "the one under way";
}

TEST_F(MovesTest, WhoFindsNoSlotIsStrandedUntilItRan) {
  EngineConfig config = SmallConfig();
  config.max_num_seqs = 1;
  Start(config);
  EXPECT_EQ(engine_->StrandedRequest(), nullptr);
  Add(Prompt(1, 4, 2));
  EXPECT_EQ(engine_->StrandedRequest(), nullptr) << "it was not looked at yet";
  Next();
  EXPECT_EQ(engine_->StrandedRequest(), nullptr);
  Add(Prompt(2, 5, 2));
  Add(Prompt(3, 6, 2));
  ASSERT_NE(engine_->StrandedRequest(), nullptr);
  EXPECT_EQ(engine_->StrandedRequest()->request_id, 2u);
  const UnfinishedRequest released = engine_->Release(2);
  EXPECT_EQ(released.given.prompt, Prompt(2, 5).prompt);
  EXPECT_FALSE(released.admitted_at.has_value());
  EXPECT_EQ(engine_->StrandedRequest()->request_id, 3u);
  EXPECT_EQ(engine_->num_requests(), 2);
  engine_->CheckInvariants();
}

TEST_F(MovesTest, WhoFindsNoBlocksIsStranded) {
  Add(Prompt(1, 30));
  Next();
  Add(Prompt(2, 12));
  Next();  // a decode
  ASSERT_NE(engine_->StrandedRequest(), nullptr);
  EXPECT_EQ(engine_->StrandedRequest()->request_id, 2u);
}

TEST_F(MovesTest, WhatRanIsNotStranded) {
  Add(Prompt(1, 16, 20));
  Add(Prompt(2, 15, 20));
  while (engine_->Stats().num_preemptions == 0) Step();
  EXPECT_EQ(engine_->StrandedRequest(), nullptr);
}

TEST_F(MovesTest, RoomIsWhatThoseThatWaitLeave) {
  EXPECT_TRUE(engine_->HasRoomFor(Prompt(1, 39))) << "who is alone need not leave one to grow";
  Add(Prompt(1, 20));  // five blocks and one to grow: four are left
  EXPECT_TRUE(engine_->HasRoomFor(Prompt(2, 12)));
  EXPECT_FALSE(engine_->HasRoomFor(Prompt(2, 13)));
  Next();
  EXPECT_TRUE(engine_->HasRoomFor(Prompt(2, 12)));
  EXPECT_FALSE(engine_->HasRoomFor(Prompt(2, 13)));
  EngineConfig config = SmallConfig();  // four slots
  Start(config);
  EngineRequest three = Prompt(1, 1);
  three.num_outputs = 3;
  Add(three);
  EXPECT_TRUE(engine_->HasRoomFor(Prompt(2, 1)));
  three.request_id = 2;
  EXPECT_FALSE(engine_->HasRoomFor(three));
}

TEST_F(MovesTest, TokensThatWaitAreCounted) {
  Add(Prompt(1, 12, 4));
  Add(Prompt(2, 5, 4));
  EXPECT_EQ(engine_->NumUncomputedTokens(), 17);
  Next();
  EXPECT_EQ(engine_->NumUncomputedTokens(), 2);  // that are being chosen
  engine_->Abort(1);
  EXPECT_EQ(engine_->NumUncomputedTokens(), 1);
}

}  // namespace
}  // namespace lockstep::engine
