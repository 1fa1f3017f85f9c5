// Which replica gets a request, what follows a loss, which epochs are heard, when a drain is over.
#include "runtime/controller/core.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/core_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

// Bounds of buckets are in served_load.cc; sums and numbers of values tell what was measured.
TEST_F(CoreTest, WhatRequestsWaitForIsMeasured) {
  const auto num_values = [](const v1::Histogram& histogram) {
    uint64_t total = 0;
    for (const uint64_t count : histogram.counts()) total += count;
    return total;
  };
  Start(1);
  auto rank = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 2).ok());  // its prompt is in the step that begins now
  now_ += absl::Seconds(2);
  ASSERT_TRUE(Add(2, {4, 5}, 1).ok());  // waits for that step
  now_ += absl::Seconds(3);
  ASSERT_EQ(RunSteps(rank), 1);  // the first token of 1; 2 begins
  now_ += absl::Seconds(7);
  ASSERT_EQ(RunSteps(rank), 1);  // the second one of 1, the first of 2
  ASSERT_EQ(forgotten_.size(), 2u);
  const v1::Measurements measured = core_->Status(now_).measured();
  EXPECT_EQ(num_values(measured.queue_seconds()), 2u);
  EXPECT_DOUBLE_EQ(measured.queue_seconds().sum(), 0 + 3);
  EXPECT_EQ(num_values(measured.time_to_first_token_seconds()), 2u);
  EXPECT_DOUBLE_EQ(measured.time_to_first_token_seconds().sum(), 5 + 10);
  EXPECT_EQ(num_values(measured.inter_token_seconds()), 1u);
  EXPECT_DOUBLE_EQ(measured.inter_token_seconds().sum(), 7);
  EXPECT_EQ(num_values(measured.request_seconds()), 2u);
  EXPECT_DOUBLE_EQ(measured.request_seconds().sum(), 12 + 10);
  EXPECT_DOUBLE_EQ(measured.prompt_tokens().sum(), 3 + 2);
  EXPECT_DOUBLE_EQ(measured.output_tokens().sum(), 2 + 1);
  EXPECT_EQ(num_values(measured.step_seconds()), 2u);
  EXPECT_DOUBLE_EQ(measured.step_seconds().sum(), 5 + 7);
}

TEST_F(CoreTest, AnOutputThatAStopStringEndsIsMeasuredAndAnAbortedRequestIsNot) {
  Start(1);
  auto rank = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}).ok());
  ASSERT_TRUE(Add(2, {4, 5, 6}).ok());
  ASSERT_EQ(RunSteps(rank), 1);
  now_ += absl::Seconds(4);
  ASSERT_EQ(RunSteps(rank), 1);
  core_->FinishOutput(1, 0);
  core_->Cancel(2);
  const v1::GetStatusResponse status = core_->Status(now_);
  EXPECT_EQ(status.requests_finished(), 1u);
  EXPECT_EQ(status.requests_aborted(), 1u);
  EXPECT_DOUBLE_EQ(status.measured().request_seconds().sum(), 4);
  EXPECT_DOUBLE_EQ(status.measured().output_tokens().sum(), 2);
  core_->CheckInvariants();
}

TEST_F(CoreTest, TimeInTheQueueOfALostReplicaCounts) {
  Start(2);
  auto zero = Serve(0);
  auto one = Serve(1);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 1).ok());
  ASSERT_TRUE(Add(2, {1, 2, 3}, 1).ok());
  now_ += absl::Seconds(2);
  Lose(zero);  // before its step was done: the other one begins anew, once its own is
  now_ += absl::Seconds(5);
  while (forgotten_.size() < 2) ASSERT_GT(RunSteps(one), 0);
  const v1::Measurements measured = core_->Status(now_).measured();
  EXPECT_DOUBLE_EQ(measured.queue_seconds().sum(),
                   0);  // both were admitted at once, the first time
  EXPECT_DOUBLE_EQ(measured.time_to_first_token_seconds().sum(), 7 + 7);
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

TEST_F(CoreTest, ARequestThatKillsEveryReplicaIsEndedAndSaidSo) {
  Start(2);
  auto zero = Serve(0);
  auto one = Serve(1);
  ASSERT_TRUE(Add(1, {1, 2, 3}).ok());
  ASSERT_EQ(zero->TakePlans().size(), 1u);
  Lose(zero);
  ASSERT_EQ(one->TakePlans().size(), 1u);
  Lose(one);
  EXPECT_THAT(ended_, IsEmpty());
  ASSERT_TRUE(Add(2, {4, 5, 6}, 3).ok());
  core_->BeginEpoch(0, 2, now_);
  auto next = Serve(0, 2);
  Lose(next);
  ASSERT_EQ(ended_.count(1), 1u);
  EXPECT_EQ(ended_.at(1).error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(ended_.at(1).error_message(), HasSubstr("request r1 is not tried again"));
  EXPECT_THAT(ended_.at(1).error_message(), HasSubstr("its stream closed"));
  EXPECT_THAT(told_, Contains(Field(&ControllerEvent::message, HasSubstr("r1 is not tried"))));
  core_->CheckInvariants();
  core_->BeginEpoch(1, 2, now_);
  next = Serve(1, 2);
  while (forgotten_.size() < 2) ASSERT_GT(RunSteps(next), 0);
  EXPECT_EQ(num_tokens_[2], 3);
  EXPECT_THAT(ended_, SizeIs(1));
}

TEST_F(CoreTest, APromptThatKilledIsTriedAloneOnceMoreAndThenRefusedForAWhile) {
  Start(1);
  std::shared_ptr<FakePort> rank;
  uint64_t epoch = 0;
  const auto restart = [&] {
    if (++epoch > 1) core_->BeginEpoch(0, epoch, now_);
    rank = Serve(0, epoch);
  };
  restart();
  const std::vector<int32_t> deadly = {1, 2, 3};
  ASSERT_TRUE(Add(1, deadly).ok());
  for (int loss = 0; loss < 3; ++loss) {
    Lose(rank);
    restart();
  }
  ASSERT_EQ(ended_.count(1), 1u);
  ASSERT_TRUE(Add(2, {4, 5, 6}).ok());
  ASSERT_EQ(RunSteps(rank), 1);
  ASSERT_TRUE(Add(3, deadly).ok());
  ASSERT_EQ(RunSteps(rank), 1);
  EXPECT_EQ(DecodePlan(rank->TakePlans().at(0))->work.size(), 1u) << "it runs alone";
  Lose(rank);
  EXPECT_EQ(ended_.count(3), 1u);
  restart();
  const absl::Status refused = Add(4, deadly);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("killed their ranks 2 times: it is refused for 10m more"));
  now_ += KillerPrompts::kRefusal;
  core_->Advance(now_);
  restart();
  ASSERT_TRUE(Add(5, deadly, 10).ok());
  while (num_tokens_[5] < 10) ASSERT_GT(RunSteps(rank), 0) << "it may have been others' fault";
  EXPECT_THAT(ended_, SizeIs(2));
  ASSERT_TRUE(Add(6, {4, 5, 6}).ok());
  ASSERT_EQ(RunSteps(rank), 1);
  ASSERT_TRUE(Add(7, deadly).ok());
  ASSERT_EQ(RunSteps(rank), 1);
  EXPECT_GT(DecodePlan(rank->TakePlans().at(0))->work.size(), 1u) << "it is forgiven";
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
  const v1::GetStatusResponse status = core_->Status(now_);
  EXPECT_EQ(status.requests_aborted(), 1u);
  EXPECT_EQ(status.requests_finished(), 0u);
  EXPECT_EQ(status.measured().request_seconds().sum(), 0.0);
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
  EXPECT_EQ(status.kv_blocks_total(), 0) << "nothing serves";
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
  EXPECT_EQ(core_->Status(now_).replicas(0).num_losses(), 0u);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 2).ok());
  auto lower = Hello(0, 999);
  ASSERT_TRUE(lower->closed.has_value());
  EXPECT_THAT(lower->closed->error_message(), HasSubstr("epoch 999 is over, the last was 1000"));
  EXPECT_THAT(lower->closed->error_message(), HasSubstr("--epoch N"));
  EXPECT_FALSE(first->closed.has_value());
  auto next = Serve(0, 1001);  // takes over
  EXPECT_TRUE(first->closed.has_value());
  EXPECT_EQ(core_->Status(now_).replicas(0).num_losses(), 1u);
  core_->Advance(now_);
  while (forgotten_.empty()) ASSERT_GT(RunSteps(next), 0);
  EXPECT_EQ(num_tokens_[1], 2);
}

TEST_F(CoreTest, RanksThatComeForALostReplicaWithAClockBehindHearWhatToDo) {
  Start(1, /*adopt_epochs=*/true);
  Lose(Serve(0, 1000));
  const auto behind = Hello(0, 999);
  ASSERT_TRUE(behind->closed.has_value());
  EXPECT_EQ(behind->closed->error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(behind->closed->error_message(), HasSubstr("its stream closed"));
  EXPECT_THAT(behind->closed->error_message(), HasSubstr("start the ranks with --epoch N"));
}

TEST_F(CoreTest, ARefusalIsToldOnceAndAgainAfterRanksHaveServed) {
  Start(2, /*adopt_epochs=*/true);
  const auto num_warnings = [this](const char* text) {
    int count = 0;
    for (const ControllerEvent& event : told_) {
      const bool is_warning = event.kind == ControllerEvent::Kind::kWarning;
      if (is_warning && event.message.find(text) != std::string::npos) ++count;
    }
    return count;
  };
  const auto dial = [this](const char* model, uint64_t epoch) {
    v1::FromRank message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_epoch(epoch);
    hello.set_world_size(1);
    hello.set_tensor_parallel(1);
    hello.set_pipeline_parallel(1);
    hello.set_host("there");
    hello.set_model_fingerprint(model);
    Say(std::make_shared<FakePort>(), message);
  };
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) dial("another", epoch);
  EXPECT_EQ(num_warnings("ranks of replica 0 on there are refused: model another does not"), 1);
  dial("third", 6);
  EXPECT_EQ(num_warnings("model third"), 1);
  Serve(1, 10);
  dial("another", 11);
  EXPECT_EQ(num_warnings("model another"), 2);
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

TEST_F(CoreTest, ADrainIsOverWhenClientsHaveBeenToldAll) {
  Start(1);
  auto rank = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 1).ok());
  ASSERT_TRUE(Add(2, {4, 5}, 1).ok());
  core_->BeginDrain();
  EXPECT_FALSE(Add(3, {6}).ok());
  while (forgotten_.size() < 2) ASSERT_GT(RunSteps(rank), 0);
  core_->CallEnded(1);
  core_->Advance(now_);
  EXPECT_FALSE(drained_);
  core_->CallEnded(2);
  core_->CallEnded(3);  // never accepted
  core_->Advance(now_);
  EXPECT_TRUE(drained_);
}

// Nobody waits for them who ends at once.
// Who attaches must not end the stream that there is for nothing.
TEST_F(CoreTest, WhatAddWouldRefuseIsKnownBefore) {
  Start(1);
  auto rank = Serve(0);
  engine::EngineRequest request;
  request.request_id = 2;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 5;
  ASSERT_TRUE(Add(1, {1, 2, 3}).ok());
  EXPECT_TRUE(core_->CheckAdd(request, now_).ok());
  request.prompt.resize(100);
  EXPECT_EQ(core_->CheckAdd(request, now_).code(), absl::StatusCode::kInvalidArgument);
  request.prompt.resize(3);
  for (uint64_t number = 2; Add(number + 1, {1}).ok(); ++number) {
  }
  EXPECT_EQ(core_->CheckAdd(request, now_).code(), absl::StatusCode::kResourceExhausted);
  core_->BeginDrain();
  EXPECT_EQ(core_->CheckAdd(request, now_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CoreTest, CallsThatHaveNotEndedAreDroppedWithAllOthers) {
  Start(1);
  auto rank = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}).ok());
  core_->EndAll("the server is shutting down");
  EXPECT_TRUE(drained_);
  EXPECT_EQ(ended_.at(1).error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace lockstep::testing
