// Requests that end before their last token: cancelled, aborted, late, failed, or not read.
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/controller/controller_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

using EarlyEndsTest = ControllerTest;

TEST_F(EarlyEndsTest, CancellingFreesTheBlocks) {
  Serve();
  const auto stream = GenerateHeld(Request("hello", 90));
  ASSERT_GT(Status().kv_blocks_in_use(), 0);
  stream->context.TryCancel();
  // While the step in flight is still held.
  EXPECT_TRUE(Eventually([](const v1::GetStatusResponse& s) { return s.num_running() == 0; }));
  EXPECT_EQ(ReadAll(*stream->reader).status.error_code(), grpc::StatusCode::CANCELLED);
  replica_->Release();
  EXPECT_TRUE(IsIdle());
  EXPECT_EQ(Status().requests_aborted(), 1u);
}

TEST_F(EarlyEndsTest, LosingTheConnectionAborts) {
  Serve();
  replica_->Hold();
  {
    const std::shared_ptr<grpc::Channel> channel = NewChannel();
    const auto stub = v1::Generation::NewStub(channel);
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, Request("hello", 90));
    v1::GenerateEvent event;
    ASSERT_TRUE(reader->Read(&event));
  }  // the reader's destructor cancels, the channel closes
  EXPECT_TRUE(Eventually([](const v1::GetStatusResponse& s) { return s.num_running() == 0; }));
  replica_->Release();
  EXPECT_TRUE(IsIdle());
}

TEST_F(EarlyEndsTest, AbortEndsARequestAndIsIdempotent) {
  Serve();
  v1::GenerateRequest request = Request("hello", 90);
  request.set_request_id("victim");
  request.mutable_sampling()->set_num_outputs(2);
  const auto stream = GenerateHeld(request);
  const auto abort = [&](const std::string& id) {
    grpc::ClientContext abort_context;
    v1::AbortRequest abort_request;
    abort_request.set_request_id(id);
    v1::AbortResponse response;
    EXPECT_TRUE(stub().Abort(&abort_context, abort_request, &response).ok());
    return response.was_running();
  };
  EXPECT_TRUE(abort("victim"));
  EXPECT_FALSE(abort("victim"));
  EXPECT_FALSE(abort("nobody"));
  const Generated generated = ReadAll(*stream->reader);
  EXPECT_TRUE(generated.status.ok());
  EXPECT_EQ(generated.outputs.at(0).finished->reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_EQ(generated.outputs.at(1).finished->reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_TRUE(generated.usage);
  replica_->Release();
  EXPECT_TRUE(IsIdle());
}

TEST_F(EarlyEndsTest, DeadlinesEndRequests) {
  Serve();
  replica_->Hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(150));
  const auto reader = stub().Generate(&context, Request("hello", 90));
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([](const v1::GetStatusResponse& s) { return s.num_running() == 0; }));
  replica_->Release();
  EXPECT_TRUE(IsIdle());
}

TEST_F(EarlyEndsTest, LogitsThatAreNoNumbersEndARequestWithAnError) {
  Serve();
  v1::GenerateRequest request = Request("hello", 90);
  request.mutable_sampling()->set_num_outputs(2);
  replica_->FindNoTokens();
  const Generated generated = Generate(request);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("logits are no numbers"));
  EXPECT_TRUE(IsIdle());
}

TEST_F(EarlyEndsTest, AClientThatDoesNotReadStallsNobody) {
  ControllerOptions options = DefaultOptions();
  options.max_unread_bytes = 20'000;
  Serve(std::move(options));
  v1::GenerateRequest greedy = Request("hello", 90);
  greedy.mutable_sampling()->set_num_outputs(64);
  greedy.mutable_output()->set_logprobs(20);  // megabytes
  const std::shared_ptr<grpc::Channel> channel = NewChannel(/*small_window=*/true);
  const auto stub = v1::Generation::NewStub(channel);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, greedy);
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Generate(Request("hello", 40)).status.ok());
  EXPECT_TRUE(IsIdle());  // the one that did not read is gone
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(EarlyEndsTest, ACompleteStreamThatIsNotReadEnds) {
  ControllerOptions options = DefaultOptions();
  options.unread_patience = absl::Milliseconds(50);
  Serve(std::move(options));
  const auto stub = v1::Generation::NewStub(NewChannel(/*small_window=*/true));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, LargeRequest());
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(Eventually([](const auto& status) { return status.requests_finished() == 1; }));
  controller_->BeginDrain();
  EXPECT_TRUE(controller_->WaitDrained(absl::Now() + absl::Seconds(10)));
  const grpc::Status status = ReadAll(*reader).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "the client read nothing of this complete stream for 50ms");
}

// Clients that leave at any moment, others that stop by strings, a cache too small for all of them.
TEST_F(EarlyEndsTest, RandomDeparturesLeaveNothingBehind) {
  Serve(1, 2);
  std::vector<std::thread> clients;
  for (int i = 0; i < 48; ++i) {
    clients.emplace_back([&, i] {
      std::mt19937 random(i);
      for (int round = 0; round < 3; ++round) {
        v1::GenerateRequest request = Request(absl::StrCat("client ", i), 5 + random() % 80);
        request.mutable_sampling()->set_seed(random());
        request.mutable_sampling()->set_num_outputs(1 + random() % 3);
        if (random() % 2 == 0)
          request.mutable_stop()->add_stop_strings(std::string(1, 'a' + i % 26));
        grpc::ClientContext context;
        const auto reader = stub().Generate(&context, request);
        v1::GenerateEvent event;
        for (unsigned events = random() % 40; events > 0 && reader->Read(&event); --events) {
        }
        if (random() % 2 == 0) context.TryCancel();
        while (reader->Read(&event)) {
        }
        const grpc::StatusCode code = reader->Finish().error_code();
        EXPECT_TRUE(code == grpc::StatusCode::OK || code == grpc::StatusCode::CANCELLED) << code;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(IsIdle());
  const v1::GetStatusResponse status = Status();
  EXPECT_EQ(status.state(), v1::GetStatusResponse::STATE_SERVING);
  EXPECT_EQ(status.requests_accepted(), status.requests_finished() + status.requests_aborted());
}

}  // namespace
}  // namespace lockstep::testing
