// Ranks that are refused, and ranks that break the protocol.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "model/sampling/sampling_params.h"
#include "tests/controller/lifecycle_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

using RankProtocolTest = LifecycleTest;

// --- ranks that are refused ---

TEST_F(RankProtocolTest, OnlyRanksOfThisLaunchAreWelcome) {
  StartController(DefaultOptions());
  v1::Hello hello = GoodHello();
  hello.set_secret("wrong");
  EXPECT_EQ(Refused(hello).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  hello.set_secret(controller_->secret() + "x");
  EXPECT_EQ(Refused(hello).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  hello.clear_secret();
  EXPECT_EQ(Refused(hello).error_code(), grpc::StatusCode::PERMISSION_DENIED);

  const auto refused = [&](const std::function<void(v1::Hello&)>& spoil) {
    v1::Hello wrong = GoodHello();
    spoil(wrong);
    const grpc::Status status = Refused(wrong);
    EXPECT_FALSE(status.ok());
    return status.error_message();
  };
  EXPECT_THAT(refused([](auto& h) { h.set_epoch(9); }), HasSubstr("epoch 9"));
  EXPECT_THAT(refused([](auto& h) { h.set_rank(1); }), HasSubstr("rank 1"));
  EXPECT_THAT(refused([](auto& h) { h.set_rank(-1); }), HasSubstr("rank -1"));
  EXPECT_THAT(refused([](auto& h) { h.set_world_size(2); }), HasSubstr("world_size 2"));
  EXPECT_THAT(refused([](auto& h) { h.set_tensor_parallel(4); }), HasSubstr("tensor_parallel 4"));
  EXPECT_THAT(refused([](auto& h) { h.set_pipeline_parallel(4); }),
              HasSubstr("pipeline_parallel 4"));
  EXPECT_THAT(refused([](auto& h) { h.set_replica(1); }), HasSubstr("replica 1"));
  EXPECT_THAT(refused([](auto& h) { h.set_version("old"); }), HasSubstr("version old"));
  EXPECT_THAT(refused([](auto& h) { h.set_model_fingerprint("gpt"); }), HasSubstr("gpt"));
  EXPECT_THAT(refused([](auto& h) { h.set_tokenizer_fingerprint("none"); }),
              HasSubstr("tokenizer.json none"));
  EXPECT_THAT(refused([](auto& h) { h.set_host(std::string(300, 'h')); }), HasSubstr("host"));

  StartReplica();  // none of them did harm
  EXPECT_TRUE(WaitServing().ok());
}

// It is refused before it says anything.
TEST_F(RankProtocolTest, NothingIsReadOfACallThatDoesNotShowTheSecret) {
  StartController(DefaultOptions());
  for (const std::string& shown :
       {std::string(), std::string("wrong"), controller_->secret() + "x"}) {
    const std::unique_ptr<RankStream> stream = Dial(shown);
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(), HasSubstr("the call does not show"));
  }
}

TEST_F(RankProtocolTest, RanksWithLessRoomThanStepsNeedAreRefused) {
  StartController(DefaultOptions());
  const auto refused = [&](const std::function<void(v1::RankLimits&)>& change) {
    v1::Hello hello = GoodHello();
    change(*hello.mutable_limits());
    const grpc::Status status = Refused(hello);
    EXPECT_FALSE(status.ok());
    return status.error_message();
  };
  EXPECT_EQ(refused([](auto& limits) { limits.set_block_size(8); }),
            absl::StrCat("--block-size 8 does not match the controller's ", kBlockSize));
  EXPECT_EQ(refused([](auto& limits) { limits.set_max_num_seqs(7); }),
            "--max-num-seqs 7 is less than the controller's 8");
  EXPECT_EQ(refused([](auto& limits) { limits.set_max_batched_tokens(31); }),
            "--max-batched-tokens 31 is less than the controller's 32");
  EXPECT_EQ(refused([](auto& limits) { limits.set_max_model_len(kMaxModelLen - 1); }),
            absl::StrCat("--max-model-len ", kMaxModelLen - 1, " is less than the controller's ",
                         kMaxModelLen));
  EXPECT_THAT(refused([](auto& limits) { limits.Clear(); }),
              HasSubstr("RankLimits.block_size 0 is outside"));
  EXPECT_THAT(refused([](auto& limits) { limits.set_max_num_seqs(int64_t{1} << 62); }),
              HasSubstr("RankLimits.max_num_seqs"));

  const std::unique_ptr<RankStream> roomy = Dial();
  v1::Hello hello = GoodHello();
  hello.mutable_limits()->set_max_num_seqs(9);
  hello.mutable_limits()->set_max_model_len(1 << 20);
  roomy->SendHello(hello);
  v1::ToRank answer;
  ASSERT_TRUE(roomy->Receive(&answer));
  EXPECT_TRUE(answer.has_welcome());
}

TEST_F(RankProtocolTest, ASecondRankOfTheSameNumberIsRefused) {
  Serve();
  const grpc::Status status = Refused(GoodHello());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Generate(Request("hello", 5)).status.ok());
}

TEST_F(RankProtocolTest, AStreamThatSaysNothingIsClosed) {
  ControllerOptions options = DefaultOptions();
  options.hello_timeout = absl::Seconds(1);
  StartController(std::move(options));
  const std::unique_ptr<RankStream> silent = Dial();
  EXPECT_EQ(silent->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
  absl::SleepFor(absl::Milliseconds(1100));  // the deadline is for the Hello only
  EXPECT_TRUE(Generate(Request("hello", 5)).status.ok());
}

// --- ranks that break the protocol ---

TEST_F(RankProtocolTest, MessagesOutOfOrderLoseTheReplica) {
  StartController(DefaultOptions());
  const std::unique_ptr<RankStream> stream = Dial();
  stream->SendHello(GoodHello());
  stream->SendReady();  // before Loaded
  const absl::Status status = WaitServing();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 (stage 0, tp_rank 0, pid 77 on "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Ready out of order"));
}

class RubbishTest : public RankProtocolTest, public ::testing::WithParamInterface<int> {
 protected:
  // Of the parameter's kind, to the plan of that step.
  v1::FromRank Rubbish(uint64_t step_id) {
    v1::FromRank rubbish;
    v1::StepResult& result = *rubbish.mutable_result();
    result.set_step_id(step_id);
    switch (GetParam()) {
      case 0:
        result.set_step_id(99);
        break;
      case 1:  // no token
        break;
      case 2:
        result.add_tokens(kVocabSize);
        break;
      case 3:
        result.add_tokens(kNoToken - 1);
        break;
      case 4:
        result.add_tokens(1);
        result.add_tokens(1);
        break;
      case 5:
        rubbish.Clear();
        break;
      case 6:
        *rubbish.mutable_hello() = GoodHello();
        break;
      case 7:
        rubbish.mutable_heartbeat()->set_operation_age_ms(-5);
        break;
      case 8:
        rubbish.mutable_failure()->set_message("out of memory");
        break;
    }
    return rubbish;
  }
};

TEST_P(RubbishTest, FromAServingRankLosesTheReplicaAndNeverTheServer) {
  StartController(DefaultOptions());
  std::unique_ptr<RankStream> stream = Dial();
  stream->SendHello(GoodHello());
  stream->SendLoaded(kNumBlocks);
  v1::ToRank message;
  ASSERT_TRUE(stream->Receive(&message) && message.has_welcome());
  ASSERT_TRUE(stream->Receive(&message) && message.has_start());
  EXPECT_EQ(message.start().num_kv_blocks(), kNumBlocks);
  stream->SendReady();
  ASSERT_TRUE(WaitServing().ok());
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, Request("hello", 5));
  ASSERT_TRUE(stream->Receive(&message) && message.has_plan());
  stream->Send(Rubbish(message.plan().step_id()));
  const Generated generated = ReadAll(*reader);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("rank 0"));
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  EXPECT_EQ(Status().state(), v1::GetStatusResponse::STATE_FAILED);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RubbishTest, ::testing::Range(0, 9));

TEST_F(RankProtocolTest, HeartbeatsShowInTheStatus) {
  StartController(DefaultOptions());
  const std::unique_ptr<RankStream> stream = Dial();
  stream->SendHello(GoodHello());
  v1::FromRank message;
  message.mutable_heartbeat()->set_operation("loading 41 %");
  message.mutable_heartbeat()->set_last_step(17);
  stream->Send(message);
  EXPECT_TRUE(Eventually([](const v1::GetStatusResponse& status) {
    return status.ranks(0).operation() == "loading 41 %" && status.ranks(0).last_step() == 17;
  }));
  EXPECT_EQ(Status().ranks(0).host(), "testhost");
  EXPECT_EQ(Status().state(), v1::GetStatusResponse::STATE_STARTING);
}

}  // namespace
}  // namespace lockstep::testing
