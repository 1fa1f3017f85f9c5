// A streaming call in the thread that makes it.
#pragma once

#include <type_traits>

#include "absl/time/time.h"
#include "launcher/client/connection.h"

namespace lockstep::testing {

// Generate or Attach. on_event(event, context) is called for every event, and may cancel.
template <typename Request, typename OnEvent>
grpc::Status ReadStream(const Connection& connection, const Request& request,
                        absl::Duration timeout, OnEvent on_event) {
  grpc::ClientContext context;
  connection.Prepare(context, timeout);
  const auto reader = [&] {
    if constexpr (std::is_same_v<Request, v1::AttachRequest>) {
      return connection.stub().Attach(&context, request);
    } else {
      return connection.stub().Generate(&context, request);
    }
  }();
  v1::GenerateEvent event;
  while (reader->Read(&event)) on_event(event, context);
  return reader->Finish();
}

}  // namespace lockstep::testing
