// The core alone: which replica gets a request, what follows a loss, which epochs are heard.
#include "runtime/controller/core.h"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "runtime/controller/wire.h"
#include "runtime/engine/fake_language_model.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kBlockSize = 4;
constexpr int32_t kVocabSize = 50;

class FakePort final : public RankPort {
 public:
  void Send(const grpc::ByteBuffer& bytes) override {
    v1::ToRank message;
    LS_CHECK(ParseMessage(bytes, message).ok());
    received.push_back(std::move(message));
  }
  void Close(grpc::Status status) override { closed = status; }
  void CloseNow(grpc::Status status) override { closed = status; }
  std::vector<v1::StepPlan> TakePlans() {
    std::vector<v1::StepPlan> plans;
    for (const v1::ToRank& message : received) {
      if (message.has_plan()) plans.push_back(message.plan());
    }
    received.clear();
    return plans;
  }

  std::vector<v1::ToRank> received;
  std::optional<grpc::Status> closed;
};

v1::RankLimits Limits() {
  const engine::EngineConfig defaults;
  v1::RankLimits limits;
  limits.set_block_size(kBlockSize);
  limits.set_max_num_seqs(defaults.max_num_seqs);
  limits.set_max_batched_tokens(defaults.max_batched_tokens);
  limits.set_max_model_len(100);
  return limits;
}

// Replicas of one rank, which answer every step at once with token 7.
class CoreTest : public ::testing::Test, private CoreOutput {
 protected:
  void Start(int num_replicas, bool adopt_epochs = false, int tp = 1) {
    CoreConfig config{.num_replicas = num_replicas,
                      .grid = *ProcessGrid::Create(tp, 1),
                      .version = "",
                      .model_fingerprint = "model",
                      .first_epoch = adopt_epochs ? 0u : 1u,
                      .adopt_epochs = adopt_epochs,
                      .engine = {},
                      .max_position_embeddings = 100,
                      .limits = {.vocab_size = kVocabSize},
                      .heartbeat_interval = absl::Seconds(1),
                      .lease = absl::Seconds(5),
                      .join_timeout = absl::Seconds(30),
                      .load_timeout = absl::Seconds(40),
                      .recovery_window = absl::Seconds(60),
                      .step_deadline = {}};
    config.engine.block_size = kBlockSize;
    config.engine.vocab_size = kVocabSize;
    config.engine.max_steps_in_flight = 1;
    CoreOutput& output = *this;
    core_ = std::make_unique<ControllerCore>(std::move(config), output, now_);
  }
  std::shared_ptr<FakePort> Hello(int replica, uint64_t epoch, int rank = 0, int tp = 1) {
    auto port = std::make_shared<FakePort>();
    v1::FromRank message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_replica(replica);
    hello.set_epoch(epoch);
    hello.set_rank(rank);
    hello.set_world_size(tp);
    hello.set_tensor_parallel(tp);
    hello.set_pipeline_parallel(1);
    hello.set_model_fingerprint("model");
    *hello.mutable_limits() = Limits();
    Say(port, message);
    return port;
  }
  void Say(const std::shared_ptr<FakePort>& port, const v1::FromRank& message) {
    core_->RankSaid(port, message, now_);
    core_->Advance(now_);
  }
  // A rank from Hello to Ready.
  std::shared_ptr<FakePort> Serve(int replica, uint64_t epoch = 1) {
    auto port = Load(replica, epoch, 30);
    port->received.clear();
    v1::FromRank message;
    message.mutable_ready();
    Say(port, message);
    return port;
  }
  // To Loaded, offering so many blocks.
  std::shared_ptr<FakePort> Load(int replica, uint64_t epoch, int64_t max_kv_blocks) {
    auto port = Hello(replica, epoch);
    SayLoaded(port, max_kv_blocks);
    return port;
  }
  void SayLoaded(const std::shared_ptr<FakePort>& port, int64_t max_kv_blocks) {
    v1::FromRank message;
    message.mutable_loaded()->set_kv_block_bytes(1);
    message.mutable_loaded()->set_max_kv_blocks(max_kv_blocks);
    Say(port, message);
  }
  void SayRehearsed(const std::shared_ptr<FakePort>& port, int64_t max_kv_blocks,
                    int64_t most_kv_blocks) {
    v1::FromRank message;
    message.mutable_rehearsed()->set_max_kv_blocks(max_kv_blocks);
    message.mutable_rehearsed()->set_most_kv_blocks(most_kv_blocks);
    Say(port, message);
  }
  void Lose(const std::shared_ptr<FakePort>& port) {
    core_->RankClosed(*port, "its stream closed", now_);
    core_->Advance(now_);
  }
  absl::Status Add(uint64_t number, std::vector<int32_t> prompt, int max_tokens = 20) {
    engine::EngineRequest request;
    request.request_id = number;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    const absl::Status status = core_->Add(std::move(request), absl::StrCat("r", number), now_);
    core_->Advance(now_);
    return status;
  }
  // Executes the plans that are there; returns how many.
  int RunSteps(const std::shared_ptr<FakePort>& port) {
    int num_steps = 0;
    for (const v1::StepPlan& plan : port->TakePlans()) {
      v1::FromRank message;
      v1::StepResult& result = *message.mutable_result();
      result.set_step_id(plan.step_id());
      for (size_t i = 0; i < SamplingSlots(*DecodePlan(plan)).size(); ++i) result.add_tokens(7);
      Say(port, message);
      ++num_steps;
    }
    return num_steps;
  }

  void Deliver(engine::EngineEvent event) override {
    if (event.token) ++num_tokens_[event.request_id];
  }
  void End(uint64_t number, v1::FinishReason, const grpc::Status& status) override {
    ended_[number] = status;
  }
  void Forget(uint64_t number) override { forgotten_.push_back(number); }
  void Publish(const ServingState::Snapshot& snapshot) override { snapshot_ = snapshot; }
  void Drained() override {}
  void Tell(const ControllerEvent& event) override { told_.push_back(event); }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<ControllerCore> core_;
  std::map<uint64_t, int> num_tokens_;
  std::map<uint64_t, grpc::Status> ended_;
  std::vector<uint64_t> forgotten_;
  std::vector<ControllerEvent> told_;
  ServingState::Snapshot snapshot_;
};

TEST_F(CoreTest, RequestsSpreadOverReplicas) {
  Start(2);
  auto zero = Serve(0);
  auto one = Serve(1);
  ASSERT_TRUE(Add(1, {1, 2, 3, 4, 5, 6}).ok());
  ASSERT_TRUE(Add(2, {9, 8, 7, 6, 5, 4}).ok());
  EXPECT_EQ(zero->TakePlans().size(), 1u);
  EXPECT_EQ(one->TakePlans().size(), 1u);
}

TEST_F(CoreTest, ACachedPrefixAttractsARequest) {
  Start(2);
  auto zero = Serve(0);
  auto one = Serve(1);
  const std::vector<int32_t> shared = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                       12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
  ASSERT_TRUE(Add(1, {40}, 1).ok());  // the first goes to replica 0, so that the next goes to 1
  ASSERT_TRUE(Add(2, shared, 1).ok());
  EXPECT_EQ(RunSteps(zero), 1);
  EXPECT_EQ(RunSteps(one), 1);
  ASSERT_TRUE(Add(3, shared, 1).ok());  // both are idle
  EXPECT_EQ(zero->TakePlans().size(), 0u);
  EXPECT_EQ(one->TakePlans().size(), 1u);
}

TEST_F(CoreTest, RequestsOfALostReplicaMoveAtOnceWithTheirTokens) {
  Start(2);
  auto zero = Serve(0);
  auto one = Serve(1);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 5).ok());
  ASSERT_EQ(RunSteps(zero), 1);  // its first token
  Lose(zero);
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kServing);
  const std::vector<v1::StepPlan> plans = one->TakePlans();
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0].opened(0).tokens_size(), 4);
  EXPECT_EQ(plans[0].opened(0).num_prompt_tokens(), 3u);
  core_->CheckInvariants();
}

TEST_F(CoreTest, AFinishedOutputStaysFinishedAfterAMove) {
  Start(2);
  auto zero = Serve(0);
  auto one = Serve(1);
  engine::EngineRequest request;
  request.request_id = 1;
  request.prompt = {1, 2, 3};
  request.num_outputs = 2;
  request.sampling.max_tokens = 9;
  ASSERT_TRUE(core_->Add(std::move(request), "r1", now_).ok());
  core_->FinishOutput(1, 0);
  core_->Advance(now_);
  Lose(zero);
  const std::vector<v1::StepPlan> plans = one->TakePlans();
  ASSERT_EQ(plans.size(), 1u);
  ASSERT_EQ(plans[0].opened_size(), 1);
  EXPECT_EQ(plans[0].opened(0).sequence_index(), 1u);
}

TEST_F(CoreTest, WithoutALivingReplicaRequestsWaitForTheNextEpoch) {
  Start(1);
  auto old = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 3).ok());
  Lose(old);
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kRecovering);
  ASSERT_TRUE(Add(2, {4, 5}, 3).ok());  // accepted meanwhile
  core_->BeginEpoch(0, 2, now_);
  auto next = Serve(0, 2);
  while (forgotten_.size() < 2) {
    core_->Advance(now_);
    ASSERT_GT(RunSteps(next) + (forgotten_.size() == 2), 0u);
  }
  EXPECT_EQ(num_tokens_[1], 3);
  EXPECT_EQ(num_tokens_[2], 3);
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(CoreTest, DeadlinesPassWhileNothingServes) {
  Start(1);
  auto rank = Serve(0);
  engine::EngineRequest request;
  request.request_id = 1;
  request.prompt = {1};
  request.sampling.max_tokens = 5;
  request.deadline = now_ + absl::Seconds(3);
  ASSERT_TRUE(core_->Add(std::move(request), "r1", now_).ok());
  Lose(rank);
  EXPECT_EQ(core_->NextWakeup(), now_ + absl::Seconds(3));
  now_ = core_->NextWakeup();
  core_->Advance(now_);
  EXPECT_EQ(forgotten_, std::vector<uint64_t>{1});
}

TEST_F(CoreTest, NothingAnOldEpochSaysCounts) {
  Start(1);
  auto old = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 5).ok());
  core_->BeginEpoch(0, 2, now_);
  EXPECT_TRUE(old->closed.has_value());
  EXPECT_EQ(RunSteps(old), 1);
  EXPECT_EQ(num_tokens_[1], 0);
  auto late = Hello(0, 1);
  ASSERT_TRUE(late->closed.has_value());
  EXPECT_EQ(late->closed->error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late->closed->error_message(), HasSubstr("epoch 1"));
  Serve(0, 2);
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kServing);
}

// Also one whose ranks never came.
TEST_F(CoreTest, AReplicaThatIsGivenUpSaysSo) {
  Start(2);
  auto lost = Serve(1);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 3).ok());
  core_->GiveUpReplica(0, "its program is missing");
  Lose(lost);
  core_->BeginEpoch(1, 2, now_);
  const v1::GetStatusResponse status = core_->Status(now_);
  EXPECT_EQ(status.replicas(0).state(), v1::ReplicaStatus::STATE_GIVEN_UP);
  EXPECT_EQ(status.replicas(0).detail(), "its program is missing");
  EXPECT_EQ(status.replicas(1).state(), v1::ReplicaStatus::STATE_JOINING);
  EXPECT_TRUE(Hello(0, 1)->closed.has_value()) << "a rank that comes late is refused";
  auto next = Serve(1, 2);
  while (forgotten_.empty()) {
    core_->Advance(now_);
    ASSERT_GT(RunSteps(next) + !forgotten_.empty(), 0u);
  }
  EXPECT_EQ(num_tokens_[1], 3);
}

TEST_F(CoreTest, RanksPlacedByHandBringTheirEpoch) {
  Start(1, /*adopt_epochs=*/true);
  auto first = Serve(0, 1000);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 2).ok());
  auto lower = Hello(0, 999);
  EXPECT_TRUE(lower->closed.has_value());
  EXPECT_FALSE(first->closed.has_value());
  auto next = Serve(0, 1001);  // takes over
  EXPECT_TRUE(first->closed.has_value());
  core_->Advance(now_);
  while (forgotten_.empty()) ASSERT_GT(RunSteps(next), 0);
  EXPECT_EQ(num_tokens_[1], 2);
}

TEST_F(CoreTest, AStrangerWithAHigherEpochTakesNothingOver) {
  Start(1, /*adopt_epochs=*/true);
  auto rank = Serve(0, 1000);
  auto stranger = std::make_shared<FakePort>();
  v1::FromRank message;
  message.mutable_hello()->set_epoch(2000);
  message.mutable_hello()->set_model_fingerprint("another");
  Say(stranger, message);
  EXPECT_TRUE(stranger->closed.has_value());
  EXPECT_FALSE(rank->closed.has_value());
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kServing);
}

TEST_F(CoreTest, BlocksAreAgreedAnewUntilSomethingServes) {
  Start(1);
  auto first = Load(0, 1, 50);
  Lose(first);
  core_->BeginEpoch(0, 2, now_);
  auto next = Load(0, 2, 30);
  EXPECT_FALSE(next->closed.has_value());
  EXPECT_EQ(next->received.back().start().num_kv_blocks(), 30);
}

TEST_F(CoreTest, LaterRanksNeedTheRoomThatWasAgreed) {
  Start(1);
  auto first = Serve(0);
  Lose(first);
  core_->BeginEpoch(0, 2, now_);
  auto smaller = Load(0, 2, 29);
  EXPECT_TRUE(smaller->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("room for 29 KV blocks, the first ones had 30"));
}

TEST_F(CoreTest, AllRanksRehearseBeforeTheyStartIfOneMust) {
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

// What is measured anew may be somewhat less.
TEST_F(CoreTest, LaterRanksMayHaveLessToSpare) {
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

TEST_F(CoreTest, NoRoomAtAllIsSaidWithWhatIsTaken) {
  Start(1);
  auto rank = Load(0, 1, 0);
  v1::FromRank message;
  v1::GpuMemory& memory = *message.mutable_rehearsed()->mutable_memory();
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

TEST_F(CoreTest, RehearsalsOutOfOrderOrOfNonsenseLoseTheReplica) {
  Start(1);
  const auto why = [&](const std::function<void(v1::Rehearsed&)>& change, uint64_t epoch) {
    core_->BeginEpoch(0, epoch, now_);
    auto rank = Load(0, epoch, 0);
    v1::FromRank message;
    change(*message.mutable_rehearsed());
    Say(rank, message);
    EXPECT_TRUE(rank->closed.has_value());
    return told_.back().message;
  };
  EXPECT_THAT(why([](auto& said) { said.set_max_kv_blocks(-1); }, 2),
              HasSubstr("Rehearsed.max_kv_blocks -1"));
  EXPECT_THAT(why([](auto& said) { said.set_most_kv_blocks(int64_t{1} << 31); }, 3),
              HasSubstr("Rehearsed.most_kv_blocks 2147483648"));
  EXPECT_THAT(why([](auto& said) { said.mutable_memory()->set_step_bytes(-5); }, 4),
              HasSubstr("GpuMemory.step_bytes -5"));
  core_->BeginEpoch(0, 5, now_);
  auto early = Hello(0, 5);
  SayRehearsed(early, 10, 10);
  EXPECT_TRUE(early->closed.has_value());
  EXPECT_THAT(told_.back().message, HasSubstr("it sent Rehearsed out of order"));
}

TEST_F(CoreTest, RanksThatDoNotJoinAreNamed) {
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

TEST_F(CoreTest, WhatARankTellsOfItsGpuIsPassedOn) {
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

TEST_F(CoreTest, NonsenseAboutAGpuLosesTheReplica) {
  const std::pair<const char*, std::function<void(v1::Gpu&)>> nonsense[] = {
      {"Gpu.index -1", [](v1::Gpu& gpu) { gpu.set_index(-1); }},
      {"Gpu.memory_bytes -1", [](v1::Gpu& gpu) { gpu.set_memory_bytes(-1); }},
      {"Gpu.numa_node -2", [](v1::Gpu& gpu) { gpu.set_numa_node(-2); }},
      {"a text of Gpu has 256 bytes",
       [](v1::Gpu& gpu) { gpu.set_nearest_nic(std::string(256, 'x')); }},
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

TEST_F(CoreTest, ALoadThatHangsIsNoticedAlthoughHeartbeatsGoOn) {
  Start(1);
  auto rank = Hello(0, 1);
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

TEST_F(CoreTest, AHeartbeatThatShowsProgressKeepsALongStepAlive) {
  Start(1);
  auto rank = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 5).ok());
  for (uint64_t i = 1; i <= 40; ++i) {  // 160 s; the first step's limit is 60 s
    now_ += absl::Seconds(4);
    v1::FromRank beat;
    beat.mutable_heartbeat()->set_operation("forward step 1");
    beat.mutable_heartbeat()->set_operation_sequence(i);
    Say(rank, beat);
  }
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kServing);
  for (int i = 1; i <= 20; ++i) {  // the same again and again: stuck
    now_ += absl::Seconds(4);
    v1::FromRank beat;
    beat.mutable_heartbeat()->set_operation("forward step 1");
    beat.mutable_heartbeat()->set_operation_sequence(40);
    Say(rank, beat);
  }
  EXPECT_TRUE(snapshot_.phase == ServingState::Phase::kRecovering);
  EXPECT_THAT(snapshot_.detail, HasSubstr("step 1 has no result"));
}

}  // namespace
}  // namespace lockstep::testing
