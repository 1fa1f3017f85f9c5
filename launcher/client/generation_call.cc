#include "launcher/client/generation_call.h"

#include <utility>

namespace lockstep {

GenerationCall::GenerationCall(const Connection& connection, v1::GenerateRequest request,
                               absl::Duration timeout, Handlers handlers,
                               const std::string& authorization)
    : request_(std::move(request)), handlers_(std::move(handlers)) {
  connection.Prepare(context_, timeout, authorization);
  connection.stub().async()->Generate(&context_, &request_, this);
  StartRead(&event_);
  StartCall();
}

GenerationCall::GenerationCall(const Connection& connection, v1::AttachRequest request,
                               absl::Duration timeout, Handlers handlers,
                               const std::string& authorization)
    : attach_(std::move(request)), handlers_(std::move(handlers)) {
  connection.Prepare(context_, timeout, authorization);
  connection.stub().async()->Attach(&context_, &attach_, this);
  StartRead(&event_);
  StartCall();
}

void GenerationCall::OnReadDone(bool ok) {
  if (!ok) return;  // the stream ended; OnDone follows
  handlers_.on_event(event_);
  StartRead(&event_);
}

void GenerationCall::OnDone(const grpc::Status& status) {
  // Moved out first: the owner may destroy this call as soon as the handler has told it so.
  const auto on_done = std::move(handlers_.on_done);
  on_done(status);
}

}  // namespace lockstep
