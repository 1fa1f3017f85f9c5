// Start, health, reflection, drain.
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "lockstep/v1/health.grpc.pb.h"
#include "tests/controller/lifecycle_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
namespace health = ::grpc::health::v1;

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
  EXPECT_EQ(Status().rejections().unavailable(), 1u);
  EXPECT_EQ(Status().requests_rejected(), 1u);
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
  num_blocks_ = 10;
  Serve(std::move(options));
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
  EXPECT_THAT(message([](auto& o) { o.local_listen = "127.0.0.1:0"; }),
              HasSubstr("local_listen \"127.0.0.1:0\" is not unix:/path"));
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

// --- drain and shutdown ---

TEST_F(LifecycleTest, DrainingFinishesWhatWasAccepted) {
  Serve();
  const v1::GenerateRequest request = Request("hello", 20);
  const auto stream = GenerateHeld(request);
  controller_->BeginDrain();
  grpc::ClientContext refused_context;
  const auto refused = stub().Generate(&refused_context, request);
  EXPECT_EQ(ReadAll(*refused).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused_context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  EXPECT_EQ(*Health(), Serving::NOT_SERVING);
  EXPECT_EQ(Status().state(), v1::GetStatusResponse::STATE_DRAINING);
  EXPECT_FALSE(controller_->WaitDrained(absl::Now() + absl::Milliseconds(20)));
  replica_->Release();
  const Generated generated = ReadAll(*stream->reader);
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
  const auto stub = v1::Generation::NewStub(NewChannel(/*small_window=*/true));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, LargeRequest());
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
  const auto stream = GenerateHeld(Request("hello", 90));
  const auto watch_stub = health::Health::NewStub(channel_);
  grpc::ClientContext watch_context;
  const auto watch = watch_stub->Watch(&watch_context, health::HealthCheckRequest());
  controller_->Shutdown();
  controller_->Shutdown();
  EXPECT_EQ(ReadAll(*stream->reader).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  health::HealthCheckResponse response;
  while (watch->Read(&response)) {
  }
  watch->Finish();
}

}  // namespace
}  // namespace lockstep::testing
