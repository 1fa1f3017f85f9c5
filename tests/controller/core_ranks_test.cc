// What ranks say on their way to serve: who has joined, what their GPUs are, the room that they
// have.
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/core_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CoreRanksTest : public CoreTest {
 protected:
  // A replica of two ranks placed by hand; returns one of them.
  std::shared_ptr<FakePort> ServeByTwo() {
    Start(1, /*adopt_epochs=*/true, /*tp=*/2);
    v1::FromRank ready;
    ready.mutable_ready();
    const std::array ranks = {Hello(0, 1, 0, 2), Hello(0, 1, 1, 2)};
    for (const auto& rank : ranks) SayLoaded(rank, 30);
    for (const auto& rank : ranks) Say(rank, ready);
    return ranks[0];
  }
};

TEST_F(CoreRanksTest, BlocksAreAgreedAnewUntilSomethingServes) {
  Start(1);
  auto first = Load(0, 1, 50);
  Lose(first);
  core_->BeginEpoch(0, 2, now_);
  auto next = Load(0, 2, 30);
  EXPECT_FALSE(next->closed.has_value());
  EXPECT_EQ(next->received.back().start().num_kv_blocks(), 30);
}

TEST_F(CoreRanksTest, LaterRanksNeedTheRoomThatWasAgreed) {
  Start(1);
  auto first = Serve(0);
  Lose(first);
  core_->BeginEpoch(0, 2, now_);
  auto smaller = Load(0, 2, 29);
  EXPECT_TRUE(smaller->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("room for 29 KV blocks, the first ones had 30"));
}

TEST_F(CoreRanksTest, AllRanksRehearseBeforeTheyStartIfOneMust) {
  Start(1, /*adopt_epochs=*/false, /*tp=*/2);
  const std::array ranks = {Hello(0, 1, 0, 2), Hello(0, 1, 1, 2)};
  SayLoaded(ranks[0], 20);
  SayLoaded(ranks[1], 0);
  for (const auto& rank : ranks) EXPECT_TRUE(rank->received.back().has_rehearse());
  SayRehearsed(ranks[1], 40, 44);
  for (const auto& rank : ranks) EXPECT_TRUE(rank->received.back().has_rehearse());
  SayRehearsed(ranks[0], 30, 50);
  for (const auto& rank : ranks) EXPECT_EQ(rank->received.back().start().num_kv_blocks(), 30);
}

// They would come again for nothing.
TEST_F(CoreRanksTest, RanksWithTooLittleRoomAreRefusedNamingTheOneWithTheLeast) {
  Start(1, /*adopt_epochs=*/false, /*tp=*/3);
  const std::array ranks = {Hello(0, 1, 0, 3), Hello(0, 1, 1, 3), Hello(0, 1, 2, 3)};
  for (const auto& rank : ranks) SayLoaded(rank, 0);
  SayRehearsed(ranks[0], 30, 30);
  SayRehearsed(ranks[1], 0, 40);  // a model needs one block
  SayRehearsed(ranks[2], 30, 30);
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->closed.has_value());
    EXPECT_EQ(rank->closed->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(rank->closed->error_message(), HasSubstr("the replica is lost: rank 1 (stage 0"));
  }
  EXPECT_EQ(told_.back().rank, 1);
  EXPECT_EQ(told_.back().cause, ControllerEvent::Cause::kRankComplained);
}

TEST_F(CoreRanksTest, RanksWithLessRoomThanWasAgreedAreRefusedNamingTheTightest) {
  Start(1, /*adopt_epochs=*/false, /*tp=*/2);
  const std::array first = {Hello(0, 1, 0, 2), Hello(0, 1, 1, 2)};
  for (const auto& rank : first) SayLoaded(rank, 40);
  v1::FromRank ready;
  ready.mutable_ready();
  for (const auto& rank : first) Say(rank, ready);
  Lose(first[0]);
  EXPECT_EQ(first[1]->closed->error_code(), grpc::StatusCode::ABORTED);
  core_->BeginEpoch(0, 2, now_);
  const std::array next = {Hello(0, 2, 0, 2), Hello(0, 2, 1, 2)};
  for (const auto& rank : next) SayLoaded(rank, 0);
  SayRehearsed(next[1], 37, 38);
  SayRehearsed(next[0], 36, 40);  // the fewest with some to spare
  ASSERT_TRUE(next[0]->closed.has_value());
  EXPECT_EQ(next[0]->closed->error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(told_.back().rank, 1);
  EXPECT_THAT(told_.back().message, HasSubstr("room for 38 KV blocks, the first ones had 40"));
}

// What is measured anew may be somewhat less.
TEST_F(CoreRanksTest, LaterRanksMayHaveLessToSpare) {
  Start(1);
  auto first = Load(0, 1, 0);
  SayRehearsed(first, 40, 44);
  EXPECT_EQ(first->received.back().start().num_kv_blocks(), 40);
  v1::FromRank ready;
  ready.mutable_ready();
  Say(first, ready);
  Lose(first);
  core_->BeginEpoch(0, 2, now_);
  auto second = Load(0, 2, 0);
  SayRehearsed(second, 36, 40);
  EXPECT_EQ(second->received.back().start().num_kv_blocks(), 40);
  Lose(second);
  core_->BeginEpoch(0, 3, now_);
  auto third = Load(0, 3, 0);
  SayRehearsed(third, 35, 39);
  EXPECT_TRUE(third->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("room for 39 KV blocks, the first ones had 40"));
}

// They say what they measured before they served.
TEST_F(CoreRanksTest, RanksThatKeptTheirWeightsMayHaveLessToSpareToo) {
  Start(1);
  Lose(Serve(0));  // 30 are agreed
  core_->BeginEpoch(0, 2, now_);
  auto kept = Hello(0, 2);
  v1::FromRank loaded;
  loaded.mutable_loaded()->set_kv_block_bytes(1);
  *loaded.mutable_loaded()->mutable_kv_room() = Room(28, 30);
  Say(kept, loaded);
  EXPECT_FALSE(kept->closed.has_value());
  EXPECT_EQ(kept->received.back().start().num_kv_blocks(), 30);
}

TEST_F(CoreRanksTest, NoRoomAtAllIsSaidWithWhatIsTaken) {
  Start(1);
  auto rank = Load(0, 1, 0);
  v1::FromRank message;
  v1::GpuMemory& memory = *message.mutable_rehearsed()->mutable_kv_room()->mutable_memory();
  memory.set_total_bytes(int64_t{80} << 30);
  memory.set_budget_bytes(int64_t{40} << 30);
  memory.set_weight_bytes(int64_t{38} << 30);
  memory.set_other_bytes(int64_t{4} << 30);
  memory.set_left_bytes(int64_t{-2} << 30);
  Say(rank, message);
  EXPECT_TRUE(rank->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("weights take 38.00 GiB"));
  EXPECT_THAT(told_.back().message, HasSubstr("raise --gpu-memory-utilization to 0.53"));
}

TEST_F(CoreRanksTest, RehearsalsOutOfOrderOrOfNonsenseLoseTheReplica) {
  Start(1);
  const auto why = [&](const std::function<void(v1::KvRoom&)>& change, uint64_t epoch) {
    core_->BeginEpoch(0, epoch, now_);
    auto rank = Load(0, epoch, 0);
    v1::FromRank message;
    change(*message.mutable_rehearsed()->mutable_kv_room());
    Say(rank, message);
    EXPECT_TRUE(rank->closed.has_value());
    return told_.back().message;
  };
  EXPECT_THAT(why([](auto& room) { room.set_max_kv_blocks(-1); }, 2),
              HasSubstr("KvRoom.max_kv_blocks -1"));
  EXPECT_THAT(why([](auto& room) { room.set_most_kv_blocks(int64_t{1} << 31); }, 3),
              HasSubstr("KvRoom.most_kv_blocks 2147483648"));
  EXPECT_THAT(why(
                  [](auto& room) {
                    room.set_max_kv_blocks(5);
                    room.set_most_kv_blocks(4);
                  },
                  4),
              HasSubstr("KvRoom.most_kv_blocks 4 is less than max_kv_blocks 5"));
  EXPECT_THAT(why([](auto& room) { room.mutable_memory()->set_step_bytes(-5); }, 5),
              HasSubstr("GpuMemory.step_bytes -5"));
  core_->BeginEpoch(0, 6, now_);
  auto early = Hello(0, 6);
  SayRehearsed(early, 10, 10);
  EXPECT_TRUE(early->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("it sent Rehearsed out of order"));
}

TEST_F(CoreRanksTest, RanksThatDoNotJoinAreNamed) {
  Start(1, /*adopt_epochs=*/false, /*tp=*/3);
  auto rank = std::make_shared<FakePort>();
  v1::FromRank message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_epoch(1);
  hello.set_rank(1);
  hello.set_world_size(3);
  hello.set_tensor_parallel(3);
  hello.set_pipeline_parallel(1);
  hello.set_model_fingerprint("model");
  *hello.mutable_limits() = Limits();
  *hello.mutable_numerics() = OnCpus();
  Say(rank, message);
  for (int i = 0; i < 31; ++i) {
    now_ += absl::Seconds(1);
    v1::FromRank beat;
    beat.mutable_heartbeat();
    Say(rank, beat);
  }
  EXPECT_TRUE(rank->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("did not join within 30s of the first: 0, 2"));
}

v1::FromRank PreflightOnGpu() {
  v1::FromRank message;
  v1::Gpu& gpu = *message.mutable_preflight()->mutable_gpu();
  gpu.set_index(1);
  gpu.set_name("NVIDIA H100");
  gpu.set_memory_bytes(1000);
  gpu.set_pci_bus_id("0000:1b:00.0");
  gpu.set_numa_node(-1);
  v1::GpuLink& link = *gpu.add_links();
  link.set_pci_bus_id("0000:3d:00.0");
  link.set_kind(v1::GpuLink::NVLINK);
  return message;
}

TEST_F(CoreRanksTest, WhatARankTellsOfItsGpuIsPassedOn) {
  Start(1);
  auto rank = Hello(0, 1);
  Say(rank, PreflightOnGpu());
  ASSERT_EQ(told_.back().kind, ControllerEvent::Kind::kRankChecked);
  const std::optional<RankCheck::Gpu>& gpu = told_.back().check.gpu;
  ASSERT_TRUE(gpu.has_value());
  EXPECT_EQ(gpu->index, 1);
  EXPECT_EQ(gpu->name, "NVIDIA H100");
  EXPECT_EQ(gpu->numa_node, -1);
  EXPECT_EQ(gpu->links.at("0000:3d:00.0"), DeviceLink::kNvLink);
}

TEST_F(CoreRanksTest, NonsenseAboutAGpuLosesTheReplica) {
  const std::pair<const char*, std::function<void(v1::Gpu&)>> nonsense[] = {
      {"Gpu.index -1", [](v1::Gpu& gpu) { gpu.set_index(-1); }},
      {"Gpu.memory_bytes -1", [](v1::Gpu& gpu) { gpu.set_memory_bytes(-1); }},
      {"Gpu.numa_node -2", [](v1::Gpu& gpu) { gpu.set_numa_node(-2); }},
      {"a text of Gpu has 256 bytes",
       [](v1::Gpu& gpu) { gpu.set_idle_nic(std::string(256, 'x')); }},
      {"GpuLink.kind is 3",
       [](v1::Gpu& gpu) { gpu.mutable_links(0)->set_kind(static_cast<v1::GpuLink::Kind>(3)); }},
      {"Gpu has 65 links",
       [](v1::Gpu& gpu) {
         while (gpu.links_size() < 65) gpu.add_links();
       }},
  };
  for (const auto& [reason, spoil] : nonsense) {
    Start(1);
    auto rank = Hello(0, 1);
    v1::FromRank message = PreflightOnGpu();
    spoil(*message.mutable_preflight()->mutable_gpu());
    Say(rank, message);
    EXPECT_TRUE(rank->closed.has_value());
    EXPECT_THAT(told_.back().message, HasSubstr(reason));
  }
}

TEST_F(CoreRanksTest, ALoadThatHangsIsNoticedAlthoughHeartbeatsGoOn) {
  Start(1);
  now_ += absl::Seconds(39);  // it may take its time to come
  auto rank = Hello(0, 1);
  for (int i = 0; i < 3; ++i) core_->Advance(now_ += absl::Seconds(1));
  EXPECT_FALSE(rank->closed.has_value());
  for (int i = 1; i <= 100; ++i) {  // slow, but it moves
    now_ += absl::Seconds(4);
    v1::FromRank loading;
    loading.mutable_loading()->set_bytes_done(i);
    loading.mutable_loading()->set_bytes_total(1000);
    Say(rank, loading);
  }
  EXPECT_FALSE(rank->closed.has_value());
  for (int i = 0; i < 11; ++i) {
    now_ += absl::Seconds(4);
    v1::FromRank beat;
    beat.mutable_heartbeat()->set_operation_age_ms(4000 * i);
    Say(rank, beat);
  }
  EXPECT_TRUE(rank->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("no rank has come further for 40s"));
}

// Stopped and continued, the loop runs before what came meanwhile is read.
TEST_F(CoreRanksTest, LoopThatWasHeldUpHearsRanksOutBeforeItJudgesThem) {
  Start(1);
  auto rank = Serve(0);
  now_ += absl::Seconds(7);
  core_->Advance(now_);
  EXPECT_FALSE(rank->closed.has_value());
  v1::FromRank beat;
  beat.mutable_heartbeat();
  Say(rank, beat);
  EXPECT_EQ(core_->NextWakeup(), now_ + absl::Seconds(5));
}

TEST_F(CoreRanksTest, RankThatSaysNothingAfterTheLoopWasHeldUpIsLost) {
  Start(1);
  auto rank = Serve(0);
  now_ += absl::Seconds(7);
  core_->Advance(now_);
  EXPECT_EQ(core_->NextWakeup(), now_ + absl::Seconds(2));
  now_ = core_->NextWakeup();
  core_->Advance(now_);
  EXPECT_TRUE(rank->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("nothing heard of it for 5s"));
}

TEST_F(CoreRanksTest, RanksThatComeAndFailDoNotProlongTheRecovery) {
  Start(1);
  Lose(Serve(0));  // requests wait for a minute
  ASSERT_TRUE(Add(1, {1, 2, 3}).ok());
  uint64_t epoch = 1;
  for (; epoch < 6; ++epoch) {
    now_ += absl::Seconds(10);
    core_->BeginEpoch(0, epoch + 1, now_);
    Lose(Load(0, epoch + 1, 30));
    EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kRecovering);
  }
  now_ += absl::Seconds(10);
  core_->BeginEpoch(0, epoch + 1, now_);
  auto last = Load(0, epoch + 1, 30);
  EXPECT_FALSE(last->closed.has_value());
  Lose(last);
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kFailed);
  EXPECT_THAT(ended_.at(1).error_message(), HasSubstr("no new ranks served within 1m"));
}

TEST_F(CoreRanksTest, JobThatReplacesOneThatLoadedForLongHasTheWholeRecoveryLeft) {
  const auto first = ServeByTwo();
  ASSERT_TRUE(Add(1, {1, 2, 3}).ok());
  Lose(first);
  const std::array loads = {Hello(0, 2, 0, 2), Hello(0, 2, 1, 2)};
  for (int second = 0; second < 100; ++second) {
    now_ += absl::Seconds(1);
    v1::FromRank progress;
    progress.mutable_loading()->set_bytes_done(second);
    progress.mutable_loading()->set_bytes_total(1000);
    for (const auto& rank : loads) Say(rank, progress);
  }
  Hello(0, 3, 0, 2);
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kRecovering);
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(CoreRanksTest, RanksOfWhichSomeNeverComeDoNotProlongTheRecovery) {
  const auto first = ServeByTwo();
  Lose(first);
  for (uint64_t epoch = 2; snapshot_.phase == ServingState::Phase::kRecovering; ++epoch) {
    ASSERT_LE(epoch, 20u);
    now_ += absl::Seconds(4);
    Hello(0, epoch, 0, 2);
  }
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kFailed);
}

TEST_F(CoreRanksTest, LoadingMayTakeLongerThanRequestsWaitForRanks) {
  Start(1);
  Lose(Serve(0));
  ASSERT_TRUE(Add(1, {1, 2, 3}).ok());
  const auto load = [this](uint64_t epoch) {
    core_->BeginEpoch(0, epoch, now_);
    auto rank = Hello(0, epoch);
    for (int i = 1; i <= 50; ++i) {
      now_ += absl::Seconds(4);
      v1::FromRank loading;
      loading.mutable_loading()->set_bytes_done(i);
      loading.mutable_loading()->set_bytes_total(1000);
      Say(rank, loading);
    }
    return rank;
  };
  Lose(load(2));  // and there is still time for another attempt
  now_ += absl::Seconds(4);
  core_->Advance(now_);
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kRecovering);
  auto rank = load(3);
  SayLoaded(rank, 30);
  v1::FromRank ready;
  ready.mutable_ready();
  Say(rank, ready);
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kServing);
  EXPECT_TRUE(ended_.empty());
}

}  // namespace
}  // namespace lockstep::testing
