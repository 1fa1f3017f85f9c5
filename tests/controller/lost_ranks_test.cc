// Replicas that are lost: what their requests and clients see, and how a new epoch goes on.
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/controller/lifecycle_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

using LostRanksTest = LifecycleTest;

TEST_F(LostRanksTest, ALostRankEndsRequestsWithItsName) {
  Serve(2, 2);
  const auto stream = GenerateHeld(Request("hello", 90));
  replica_->Kill(1);
  const Generated generated = ReadAll(*stream->reader);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(),
              HasSubstr("rank 1 (stage 0, tp_rank 1, pid 1001 on testhost)"));
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  ASSERT_EQ(Events(ControllerEvent::Kind::kRankLost).size(), 1u);
  EXPECT_EQ(Events(ControllerEvent::Kind::kRankLost)[0].rank, 1);
  const Generated later = Generate(Request("hello", 5));
  EXPECT_EQ(later.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(later.status.error_message(), HasSubstr("rank 1"));
  EXPECT_EQ(Status().num_running(), 0);
}

TEST_F(LostRanksTest, ANewEpochContinuesRequestsTokenForToken) {
  ControllerOptions options = DefaultOptions();
  options.recovery_window = absl::Seconds(20);
  step_time_ = absl::Milliseconds(1);
  Serve(std::move(options));
  v1::GenerateRequest request = Request("hello", 80);
  request.mutable_sampling()->set_num_outputs(2);
  std::vector<std::thread> clients;
  std::vector<Generated> generated(6);
  for (size_t i = 0; i < generated.size(); ++i) {
    clients.emplace_back([&, i] { generated[i] = Generate(request); });
  }
  while (replica_->num_steps() < 30) absl::SleepFor(absl::Milliseconds(1));
  replica_->Kill(0);
  EXPECT_TRUE(Eventually([](const v1::GetStatusResponse& s) {
    return s.state() != v1::GetStatusResponse::STATE_SERVING;
  }));
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  const v1::Hello old_hello = GoodHello();
  epoch_ = 2;
  controller_->BeginEpoch(0, 2);
  replica_.reset();
  EXPECT_THAT(Refused(old_hello).error_message(), HasSubstr("epoch 1"));
  StartReplica();
  EXPECT_TRUE(WaitServing().ok());
  for (std::thread& client : clients) client.join();
  for (const Generated& each : generated) {
    ASSERT_TRUE(each.status.ok()) << each.status.error_message();
    EXPECT_EQ(each.outputs.at(0).ids, ExpectedIds(request, 5, 0));
    EXPECT_EQ(each.outputs.at(1).ids, ExpectedIds(request, 5, 1));
    EXPECT_EQ(each.outputs.at(0).text, Decode(each.outputs.at(0).ids));
  }
  EXPECT_EQ(*Health(), Serving::SERVING);
  EXPECT_TRUE(IsIdle());
}

TEST_F(LostRanksTest, WithoutNewRanksRecoveryEnds) {
  ControllerOptions options = DefaultOptions();
  options.recovery_window = absl::Milliseconds(100);
  Serve(std::move(options));
  const auto stream = GenerateHeld(Request("hello", 90));
  replica_->Kill(0);
  const Generated generated = ReadAll(*stream->reader);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("no new ranks served within 100ms"));
}

TEST_F(LostRanksTest, AStuckStepLosesTheReplica) {
  ControllerOptions options = DefaultOptions();
  options.step_deadline.first = absl::Milliseconds(100);
  Serve(std::move(options));
  replica_->Hold();
  const Generated generated = Generate(Request("hello", 90));
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("step 1 has no result after "));
}

TEST_F(LostRanksTest, ASilentRankLosesTheReplica) {
  ControllerOptions options = DefaultOptions();
  options.lease = absl::Milliseconds(300);  // fake ranks send no heartbeats
  StartController(std::move(options));
  StartReplica();
  ASSERT_TRUE(Eventually([](const v1::GetStatusResponse& status) {
    return status.state() == v1::GetStatusResponse::STATE_FAILED;
  }));
  ASSERT_EQ(Events(ControllerEvent::Kind::kRankLost).size(), 1u);
  EXPECT_EQ(Events(ControllerEvent::Kind::kRankLost)[0].cause,
            ControllerEvent::Cause::kRankVanished);
  EXPECT_THAT(Status().detail(), HasSubstr("nothing heard of it for 300ms"));
}

TEST_F(LostRanksTest, FailEndsRequestsWithTheCause) {
  Serve();
  const auto stream = GenerateHeld(Request("hello", 90));
  controller_->Fail("mpirun ended with status 9");
  const Generated generated = ReadAll(*stream->reader);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(generated.status.error_message(), "mpirun ended with status 9");
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  replica_->Release();
  EXPECT_FALSE(replica_->Wait(0).ok());  // the rank is told to go
}

}  // namespace
}  // namespace lockstep::testing
