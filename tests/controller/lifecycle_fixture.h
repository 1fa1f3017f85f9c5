// A controller's health, and ranks that are spoken for by hand.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lockstep/v1/health.grpc.pb.h"
#include "tests/controller/controller_fixture.h"

namespace lockstep::testing {

class LifecycleTest : public ControllerTest {
 protected:
  using Serving = ::grpc::health::v1::HealthCheckResponse;

  absl::StatusOr<Serving::ServingStatus> Health(const std::string& service = "") {
    grpc::ClientContext context;
    ::grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    Serving response;
    const grpc::Status status =
        ::grpc::health::v1::Health::NewStub(channel_)->Check(&context, request, &response);
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
  std::unique_ptr<RankStream> Dial() { return Dial(controller_->secret()); }
  std::unique_ptr<RankStream> Dial(const std::string& secret) {
    return std::make_unique<RankStream>(controller_->worker_addresses().front(), secret);
  }
  // Says Hello and returns how the controller ends the stream.
  grpc::Status Refused(const v1::Hello& hello) {
    const std::unique_ptr<RankStream> stream = Dial();
    stream->SendHello(hello);
    return stream->Finish();
  }
};

}  // namespace lockstep::testing
