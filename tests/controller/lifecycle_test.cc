// Start, health, reflection, ranks that misbehave or vanish, recovery, drain.
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "lockstep/v1/health.grpc.pb.h"
#include "model/sampling/sampling_params.h"
#include "runtime/controller/listeners.h"
#include "runtime/controller/rank_link.h"
#include "tests/controller/controller_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
namespace health = ::grpc::health::v1;
using Serving = health::HealthCheckResponse;

class LifecycleTest : public ControllerTest {
 protected:
  absl::StatusOr<Serving::ServingStatus> Health(const std::string& service = "") {
    grpc::ClientContext context;
    health::HealthCheckRequest request;
    request.set_service(service);
    health::HealthCheckResponse response;
    const grpc::Status status =
        health::Health::NewStub(channel_)->Check(&context, request, &response);
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          status.error_message());
    }
    return response.status();
  }
  v1::Hello GoodHello() {
    v1::Hello hello = ReplicaOptions(1, 1).hello;
    hello.set_world_size(1);
    hello.set_tensor_parallel(1);
    hello.set_pipeline_parallel(1);
    hello.set_pid(77);
    return hello;
  }
  std::unique_ptr<RankStream> Dial() {
    return std::make_unique<RankStream>(controller_->worker_addresses().front());
  }
  // Says Hello and returns how the controller ends the stream.
  grpc::Status Refused(const v1::Hello& hello) {
    const std::unique_ptr<RankStream> stream = Dial();
    stream->SendHello(hello);
    return stream->Finish();
  }
  absl::Status WaitServing() { return controller_->WaitServing(absl::Now() + absl::Seconds(20)); }
};

// --- start ---

TEST_F(LifecycleTest, ServesOnceEveryRankIsReady) {
  StartController(DefaultOptions());
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  const Generated early = Generate(Request("hello", 5));
  EXPECT_EQ(early.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(early.status.error_message(), HasSubstr("starting (0 of 1 ranks joined"));
  EXPECT_EQ(controller_->WaitServing(absl::Now()).code(), absl::StatusCode::kDeadlineExceeded);

  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
  EXPECT_EQ(*Health(), Serving::SERVING);
  EXPECT_EQ(*Health("lockstep.v1.Generation"), Serving::SERVING);
  EXPECT_TRUE(absl::IsNotFound(Health("nonsense").status()));
  ASSERT_EQ(Events(ControllerEvent::Kind::kRankJoined).size(), 1u);
  EXPECT_EQ(Events(ControllerEvent::Kind::kRankJoined)[0].host, "testhost");
  EXPECT_EQ(Events(ControllerEvent::Kind::kRankLoading)[0].bytes_total, 900);
  EXPECT_EQ(Events(ControllerEvent::Kind::kServing)[0].num_kv_blocks, kNumBlocks);
}

TEST_F(LifecycleTest, CapacityIsTheSmallestRanks) {
  Serve(2, 2);  // rank r offers kNumBlocks + r
  EXPECT_EQ(Status().kv_blocks_total(), kNumBlocks);
  EXPECT_EQ(Status().ranks_size(), 4);
  EXPECT_EQ(Status().ranks(3).pipeline_stage(), 1);
  EXPECT_EQ(Status().ranks(3).tp_rank(), 1);
  EXPECT_EQ(Status().ranks(3).pid(), 1003);
}

TEST_F(LifecycleTest, ACacheTooSmallForOneSequenceIsAClearFailure) {
  StartController(DefaultOptions());
  num_blocks_ = 10;
  StartReplica();
  const absl::Status status = WaitServing();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_model_len 100 needs 25 KV blocks"));
}

TEST_F(LifecycleTest, WithoutAModelLengthTheCacheDecides) {
  ControllerOptions options = DefaultOptions();
  options.max_model_len = 0;
  StartController(std::move(options));
  num_blocks_ = 10;
  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
  EXPECT_EQ(Events(ControllerEvent::Kind::kServing)[0].max_model_len, 40);
}

TEST_F(LifecycleTest, APortInUseIsNamed) {
  StartController(DefaultOptions());
  ControllerOptions options = DefaultOptions();
  options.listen = absl::StrCat("127.0.0.1:", controller_->client_port());
  const absl::Status status = Controller::Start(std::move(options)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("127.0.0.1:", controller_->client_port())));
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use"));
}

TEST_F(LifecycleTest, OptionsOutOfRangeAreNamed) {
  const auto message = [&](const std::function<void(ControllerOptions&)>& spoil) {
    ControllerOptions options = DefaultOptions();
    spoil(options);
    return std::string(Controller::Start(std::move(options)).status().message());
  };
  EXPECT_THAT(message([](auto& o) { o.listen = "nonsense"; }), HasSubstr("\"nonsense\""));
  EXPECT_THAT(message([](auto& o) { o.listen = "127.0.0.1:70000"; }), HasSubstr("70000"));
  EXPECT_THAT(message([](auto& o) { o.block_size = 0; }), HasSubstr("block_size 0"));
  EXPECT_THAT(message([](auto& o) { o.max_num_seqs = 0; }), HasSubstr("max_num_seqs 0"));
  EXPECT_THAT(message([](auto& o) { o.max_model_len = 101; }), HasSubstr("max_model_len 101"));
  EXPECT_THAT(message([](auto& o) { o.tensor_parallel = 3; }), HasSubstr("3"));
  EXPECT_THAT(message([](auto& o) { o.model_dir = "/nonexistent"; }), HasSubstr("/nonexistent"));
  EXPECT_THAT(message([](auto& o) { o.worker_listen = {"unix:" + std::string(200, 'x')}; }),
              HasSubstr("path of 200 bytes"));
}

TEST_F(LifecycleTest, TheSocketOfTheRanksIsPrivate) {
  StartController(DefaultOptions());
  const std::string address = controller_->worker_addresses().front();
  const std::filesystem::path socket = address.substr(std::string("unix:").size());
  const auto permissions = std::filesystem::status(socket.parent_path()).permissions();
  EXPECT_EQ(permissions, std::filesystem::perms::owner_all);
  controller_.reset();
  EXPECT_FALSE(std::filesystem::exists(socket.parent_path()));
}

TEST_F(LifecycleTest, RanksMayDialTcp) {
  ControllerOptions options = DefaultOptions();
  options.worker_listen = {"127.0.0.1:0"};
  StartController(std::move(options));
  StartReplica();
  EXPECT_TRUE(WaitServing().ok());
}

// --- health and reflection ---

TEST_F(LifecycleTest, WatchersSeeEveryChange) {
  StartController(DefaultOptions());
  const auto stub = health::Health::NewStub(channel_);
  grpc::ClientContext context;
  const auto watch = stub->Watch(&context, health::HealthCheckRequest());
  health::HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), Serving::NOT_SERVING);
  StartReplica();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), Serving::SERVING);
  controller_->BeginDrain();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), Serving::NOT_SERVING);
  context.TryCancel();
  while (watch->Read(&response)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(LifecycleTest, WatchingAnUnknownServiceIsNoError) {
  StartController(DefaultOptions());
  const auto stub = health::Health::NewStub(channel_);
  grpc::ClientContext context;
  health::HealthCheckRequest request;
  request.set_service("nonsense");
  const auto watch = stub->Watch(&context, request);
  health::HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), Serving::SERVICE_UNKNOWN);
  controller_->Shutdown();  // ends the watch
  EXPECT_FALSE(watch->Read(&response));
  watch->Finish();
}

// grpc.reflection.v1alpha has no installed header: the messages are written by hand
// (reflection.proto: list_services = 7, file_containing_symbol = 4).
TEST_F(LifecycleTest, ReflectionListsTheServices) {
  StartController(DefaultOptions());
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  std::string response;
  ASSERT_TRUE(CallRaw(method, std::string("\x3a\x00", 2), &response).ok());
  EXPECT_THAT(response, HasSubstr("lockstep.v1.Generation"));
  EXPECT_THAT(response, HasSubstr("grpc.health.v1.Health"));
  const std::string symbol = "lockstep.v1.Generation";
  ASSERT_TRUE(
      CallRaw(method, absl::StrCat("\x22", std::string(1, symbol.size()), symbol), &response).ok());
  EXPECT_THAT(response, HasSubstr("GenerateRequest"));
}

// --- ranks that are refused ---

TEST_F(LifecycleTest, OnlyRanksOfThisLaunchAreWelcome) {
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
  EXPECT_THAT(refused([](auto& h) { h.set_host(std::string(300, 'h')); }), HasSubstr("host"));

  StartReplica();  // none of them did harm
  EXPECT_TRUE(WaitServing().ok());
}

TEST_F(LifecycleTest, RanksWithLessRoomThanStepsNeedAreRefused) {
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

TEST_F(LifecycleTest, ASecondRankOfTheSameNumberIsRefused) {
  Serve();
  const grpc::Status status = Refused(GoodHello());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Generate(Request("hello", 5)).status.ok());
}

TEST_F(LifecycleTest, AStreamThatSaysNothingIsClosed) {
  ControllerOptions options = DefaultOptions();
  options.hello_timeout = absl::Milliseconds(50);
  StartController(std::move(options));
  const std::unique_ptr<RankStream> silent = Dial();
  EXPECT_EQ(silent->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
  absl::SleepFor(absl::Milliseconds(100));  // the deadline is for the Hello only
  EXPECT_TRUE(Generate(Request("hello", 5)).status.ok());
}

// --- ranks that break the protocol ---

TEST_F(LifecycleTest, MessagesOutOfOrderLoseTheReplica) {
  StartController(DefaultOptions());
  const std::unique_ptr<RankStream> stream = Dial();
  stream->SendHello(GoodHello());
  stream->SendReady();  // before Loaded
  const absl::Status status = WaitServing();
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 (stage 0, tp_rank 0, pid 77 on "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Ready out of order"));
}

class RubbishTest : public LifecycleTest, public ::testing::WithParamInterface<int> {};

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
  v1::FromRank rubbish;
  v1::StepResult& result = *rubbish.mutable_result();
  result.set_step_id(message.plan().step_id());
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
  stream->Send(rubbish);
  const Generated generated = ReadAll(*reader);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("rank 0"));
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  EXPECT_EQ(Status().state(), v1::GetStatusResponse::STATE_FAILED);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RubbishTest, ::testing::Range(0, 9));

TEST_F(LifecycleTest, HeartbeatsShowInTheStatus) {
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

// --- loss and recovery ---

TEST_F(LifecycleTest, ALostRankEndsRequestsWithItsName) {
  Serve(2, 2);
  replica_->Hold();
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, Request("hello", 90));
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  replica_->Kill(1);
  const Generated generated = ReadAll(*reader);
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

TEST_F(LifecycleTest, ANewEpochContinuesRequestsTokenForToken) {
  ControllerOptions options = DefaultOptions();
  options.recovery_window = absl::Seconds(20);
  StartController(std::move(options));
  step_time_ = absl::Milliseconds(1);
  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
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

TEST_F(LifecycleTest, WithoutNewRanksRecoveryEnds) {
  ControllerOptions options = DefaultOptions();
  options.recovery_window = absl::Milliseconds(100);
  StartController(std::move(options));
  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
  replica_->Hold();
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, Request("hello", 90));
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  replica_->Kill(0);
  const Generated generated = ReadAll(*reader);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("no new ranks came"));
}

TEST_F(LifecycleTest, AStuckStepLosesTheReplica) {
  ControllerOptions options = DefaultOptions();
  options.step_deadline.first = absl::Milliseconds(100);
  StartController(std::move(options));
  StartReplica();
  ASSERT_TRUE(WaitServing().ok());
  replica_->Hold();
  const Generated generated = Generate(Request("hello", 90));
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("step 1 has no result after 1"));
}

TEST_F(LifecycleTest, ASilentRankLosesTheReplica) {
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

TEST_F(LifecycleTest, FailEndsRequestsWithTheCause) {
  Serve();
  replica_->Hold();
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, Request("hello", 90));
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  controller_->Fail("mpirun ended with status 9");
  const Generated generated = ReadAll(*reader);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(generated.status.error_message(), "mpirun ended with status 9");
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  replica_->Release();
  EXPECT_FALSE(replica_->Wait(0).ok());  // the rank is told to go
}

// --- drain and shutdown ---

TEST_F(LifecycleTest, DrainingFinishesWhatWasAccepted) {
  Serve();
  replica_->Hold();
  const v1::GenerateRequest request = Request("hello", 20);
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, request);
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  controller_->BeginDrain();
  grpc::ClientContext refused_context;
  const auto refused = stub().Generate(&refused_context, request);
  EXPECT_EQ(ReadAll(*refused).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused_context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  EXPECT_EQ(Status().state(), v1::GetStatusResponse::STATE_DRAINING);
  EXPECT_FALSE(controller_->WaitDrained(absl::Now() + absl::Milliseconds(20)));
  replica_->Release();
  const Generated generated = ReadAll(*reader);
  EXPECT_TRUE(generated.status.ok());
  EXPECT_EQ(generated.outputs.at(0).ids, ExpectedIds(request, 5));
  EXPECT_TRUE(controller_->WaitDrained(absl::Now() + absl::Seconds(10)));
  controller_->Shutdown();
  const auto drained = Events(ControllerEvent::Kind::kDrained);
  ASSERT_EQ(drained.size(), 1u);
  EXPECT_EQ(drained[0].served.num_outputs, 1);
  EXPECT_EQ(drained[0].served.mean_output_tokens, 20);
  EXPECT_GT(drained[0].served.ttft_ms, 0);
  EXPECT_FALSE(drained[0].prediction.has_value());  // nobody predicts
  EXPECT_TRUE(replica_->Wait(0).ok());              // ranks see an orderly end
}

TEST_F(LifecycleTest, DrainingWaitsForClientsThatHaveNotReadAll) {
  Serve();
  v1::GenerateRequest request = Request("hello", 90);
  request.mutable_sampling()->set_num_outputs(16);
  request.mutable_output()->set_logprobs(20);  // more than may be under way to a client
  const auto stub = v1::Generation::NewStub(NewChannel(/*small_window=*/true));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const absl::Time patience = absl::Now() + absl::Seconds(20);
  while (Status().requests_finished() == 0 && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  controller_->BeginDrain();
  EXPECT_FALSE(controller_->WaitDrained(absl::Now() + absl::Milliseconds(50)));
  const Generated generated = ReadAll(*reader);
  EXPECT_TRUE(generated.status.ok()) << generated.status.error_message();
  for (const auto& [index, output] : generated.outputs) EXPECT_EQ(output.ids.size(), 90u) << index;
  EXPECT_EQ(generated.outputs.size(), 16u);
  EXPECT_TRUE(controller_->WaitDrained(absl::Now() + absl::Seconds(10)));
}

TEST_F(LifecycleTest, ShutdownEndsEveryStream) {
  Serve();
  replica_->Hold();
  grpc::ClientContext context;
  const auto reader = stub().Generate(&context, Request("hello", 90));
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const auto watch_stub = health::Health::NewStub(channel_);
  grpc::ClientContext watch_context;
  const auto watch = watch_stub->Watch(&watch_context, health::HealthCheckRequest());
  controller_->Shutdown();
  controller_->Shutdown();
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  health::HealthCheckResponse response;
  while (watch->Read(&response)) {
  }
  watch->Finish();
}

}  // namespace
}  // namespace lockstep::testing
