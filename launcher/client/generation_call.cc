#include "launcher/client/generation_call.h"

#include <utility>

namespace lockstep {

GenerationCall::GenerationCall(const Connection& connection, v1::GenerateRequest request,
                               absl::Duration timeout, Handlers handlers,
                               const std::string& authorization)
    : stub_(connection.StreamStub()), request_(std::move(request)), handlers_(std::move(handlers)) {
  connection.Prepare(context_, timeout, authorization);
  stub_->async()->Generate(&context_, &request_, this);
  Start();
}

GenerationCall::GenerationCall(const Connection& connection, v1::AttachRequest request,
                               absl::Duration timeout, Handlers handlers,
                               const std::string& authorization)
    : stub_(connection.StreamStub()), attach_(std::move(request)), handlers_(std::move(handlers)) {
  connection.Prepare(context_, timeout, authorization);
  stub_->async()->Attach(&context_, &attach_, this);
  Start();
}

void GenerationCall::Start() {
  AddHold();  // a read may begin when none is under way
  StartRead(&event_);
  StartCall();
}

void GenerationCall::OnReadDone(bool ok) {
  if (!ok) return RemoveHold();  // the stream ended; OnDone follows
  if (handlers_.on_event(event_)) StartRead(&event_);
}

void GenerationCall::OnDone(const grpc::Status& status) {
  // Moved out first: the owner may destroy this call as soon as the handler has told it so.
  const auto on_done = std::move(handlers_.on_done);
  on_done(status);
}

}  // namespace lockstep
