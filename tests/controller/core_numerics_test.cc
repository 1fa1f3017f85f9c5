// Ranks that compute in another way than those between which requests move.
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/core_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

v1::Numerics OnGpus(const std::string& gpu, bool deterministic = false) {
  v1::Numerics numerics;
  numerics.set_device("cuda");
  numerics.set_dtype("bf16");
  numerics.set_deterministic(deterministic);
  numerics.set_gpu(gpu);
  return numerics;
}

class CoreNumericsTest : public CoreTest {
 protected:
  // How its Hello is refused.
  std::string Refused(int replica, uint64_t epoch, v1::Numerics numerics, int rank = 0,
                      int tp = 1) {
    const v1::Numerics others = std::exchange(numerics_, std::move(numerics));
    const auto port = Hello(replica, epoch, rank, tp);
    numerics_ = others;
    if (!port->closed.has_value()) return "it is welcome";
    EXPECT_EQ(port->closed->error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    return port->closed->error_message();
  }
  int NumWarnings() const {
    return static_cast<int>(absl::c_count_if(told_, [](const ControllerEvent& event) {
      return event.kind == ControllerEvent::Kind::kWarning;
    }));
  }
};

TEST_F(CoreNumericsTest, WhatDiffersFromTheFirstRanksIsRefusedWithBothValues) {
  Start(2);
  const auto first = Serve(0);
  v1::Numerics other = numerics_;
  other.set_device("cuda");
  EXPECT_THAT(Refused(1, 1, other), HasSubstr("device cuda does not match the first ranks' cpu"));
  other = numerics_;
  other.set_dtype("bf16");
  EXPECT_THAT(Refused(1, 1, other), HasSubstr("dtype bf16 does not match the first ranks' f32"));
  other = numerics_;
  other.set_deterministic(false);
  EXPECT_THAT(Refused(1, 1, other),
              HasSubstr("--deterministic off does not match the first ranks' on"));
  EXPECT_FALSE(first->closed.has_value());
  Serve(1);
  EXPECT_EQ(core_->Status(now_).replicas(1).state(), v1::ReplicaStatus::STATE_SERVING);
}

TEST_F(CoreNumericsTest, RanksOfAReplicaAreComparedWithEachOther) {
  Start(1, /*adopt_epochs=*/false, /*tp=*/2);
  const auto first = Hello(0, 1, 0, 2);
  v1::Numerics other = numerics_;
  other.set_dtype("bf16");
  EXPECT_THAT(Refused(0, 1, other, 1, 2), HasSubstr("dtype bf16 does not match rank 0's f32"));
  EXPECT_FALSE(first->closed.has_value());
}

TEST_F(CoreNumericsTest, OtherGpusAreWarnedOfOnceAndRefusedWhereBitsArePromised) {
  numerics_ = OnGpus("H100");
  Start(3);
  Serve(0);
  numerics_ = OnGpus("A100");
  Serve(1);
  Serve(2);
  EXPECT_EQ(NumWarnings(), 1);
  const auto warning = absl::c_find_if(told_, [](const ControllerEvent& event) {
    return event.kind == ControllerEvent::Kind::kWarning;
  });
  EXPECT_THAT(warning->message, HasSubstr("computes on A100, the first ranks on H100"));

  numerics_ = OnGpus("H100", /*deterministic=*/true);
  Start(2);
  Serve(0);
  EXPECT_THAT(Refused(1, 1, OnGpus("A100", true)), HasSubstr("the GPU A100 does not match the "
                                                             "first ranks' H100"));
}

TEST_F(CoreNumericsTest, WhileARequestHasTokensOnlyRanksOfItsKindGoOn) {
  Start(1);
  const auto cpus = Serve(0);
  ASSERT_TRUE(Add(1, {1, 2, 3}, 5).ok());
  ASSERT_EQ(RunSteps(cpus), 1);
  Lose(cpus);
  core_->BeginEpoch(0, 2, now_);
  EXPECT_THAT(Refused(0, 2, OnGpus("H100")), HasSubstr("device cuda"));
  EXPECT_EQ(Refused(0, 2, numerics_), "it is welcome");
  ASSERT_TRUE(Add(2, {4, 5}, 5).ok());  // it waits, and has none
  core_->Cancel(1);
  core_->BeginEpoch(0, 3, now_);
  numerics_ = OnGpus("H100");
  const auto gpus = Serve(0, 3);
  ASSERT_FALSE(gpus->closed.has_value());
  EXPECT_EQ(RunSteps(gpus), 1);
  EXPECT_EQ(num_tokens_[2], 1);
}

TEST_F(CoreNumericsTest, WhoStartsFirstSetsTheKindOfThoseThatHaveJoined) {
  Start(2);
  const auto cpus = Hello(0, 1);
  numerics_ = OnGpus("H100");
  const auto gpus = Hello(1, 1);
  ASSERT_FALSE(gpus->closed.has_value());
  SayLoaded(cpus, 30);
  EXPECT_TRUE(cpus->received.back().has_start());
  SayLoaded(gpus, 30);
  ASSERT_TRUE(gpus->closed.has_value());
  EXPECT_THAT(gpus->closed->error_message(), HasSubstr("device cuda"));
  EXPECT_FALSE(cpus->closed.has_value());
  Lose(cpus);  // before anything served
  core_->BeginEpoch(1, 2, now_);
  EXPECT_FALSE(Serve(1, 2)->closed.has_value());
}

TEST_F(CoreNumericsTest, AHigherEpochOfAnotherKindTakesNothingOver) {
  Start(1, /*adopt_epochs=*/true);
  const auto first = Serve(0, 1000);
  EXPECT_THAT(Refused(0, 2000, OnGpus("H100")), HasSubstr("device cuda"));
  EXPECT_FALSE(first->closed.has_value());
}

TEST_F(CoreNumericsTest, NonsenseIsRefused) {
  const std::pair<const char*, std::function<void(v1::Numerics&)>> nonsense[] = {
      {"Numerics.device is \"\", must be cpu or cuda", [](auto& n) { n.clear_device(); }},
      {"Numerics.device is \"tpu\"", [](auto& n) { n.set_device("tpu"); }},
      {"Numerics.dtype has 0 bytes", [](auto& n) { n.clear_dtype(); }},
      {"Numerics.dtype has 65 bytes", [](auto& n) { n.set_dtype(std::string(65, 'x')); }},
      {"Numerics.gpu has 256 bytes", [](auto& n) { n.set_gpu(std::string(256, 'x')); }},
  };
  Start(1);
  for (const auto& [reason, spoil] : nonsense) {
    numerics_ = OnCpus();
    spoil(numerics_);
    const auto port = Hello(0, 1);
    ASSERT_TRUE(port->closed.has_value());
    EXPECT_EQ(port->closed->error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(port->closed->error_message(), HasSubstr(reason));
  }
}

}  // namespace
}  // namespace lockstep::testing
