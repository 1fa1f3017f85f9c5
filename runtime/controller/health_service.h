// grpc.health.v1: SERVING only while requests are accepted. Services "" (the server) and
// "lockstep.v1.Generation" share one truth. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "lockstep/v1/health.grpc.pb.h"

namespace lockstep {

namespace health = ::grpc::health::v1;

class HealthService final
    : public health::Health::WithRawCallbackMethod_Check<
          health::Health::WithRawCallbackMethod_Watch<health::Health::Service>> {
 public:
  HealthService();
  ~HealthService() override;

  // Tells every watcher when it changes.
  void SetServing(bool serving);
  // Ends every Watch: the server is closing, and waits for its calls.
  void EndWatches();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  // Reports the status at once and again at each change; an unknown service is SERVICE_UNKNOWN, not
  // an error.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  class Watcher;
  struct State;
  std::shared_ptr<State> state_;  // watchers may end after the service
};

}  // namespace lockstep
