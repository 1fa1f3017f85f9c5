// One streaming Generate or Attach call, driven by gRPC's own threads: a thousand calls need no
// thousand threads.
//
// on_event and on_done run on gRPC's threads, one at a time and in order for one call; they must
// not block for long. on_done runs exactly once and last; the call may be destroyed from then on,
// not earlier, and not inside on_done.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "launcher/client/connection.h"

namespace lockstep {

class GenerationCall final : private grpc::ClientReadReactor<v1::GenerateEvent> {
 public:
  struct Handlers {
    // Whether the next event is read at once; else it is after ReadOn, and until then the server
    // merges what it has to tell.
    std::function<bool(const v1::GenerateEvent&)> on_event;
    std::function<void(const grpc::Status&)> on_done;
  };

  // Starts the call. timeout: InfiniteDuration for none.
  // authorization: as Connection::Prepare's.
  GenerationCall(const Connection& connection, v1::GenerateRequest request, absl::Duration timeout,
                 Handlers handlers, const std::string& authorization = "");
  // Continues a request.
  GenerationCall(const Connection& connection, v1::AttachRequest request, absl::Duration timeout,
                 Handlers handlers, const std::string& authorization = "");
  GenerationCall(const GenerationCall&) = delete;
  GenerationCall& operator=(const GenerationCall&) = delete;

  // Ends the call early; on_done follows with CANCELLED. From any thread, any number of times.
  void Cancel() { context_.TryCancel(); }
  // Exactly once after each event whose on_event said false, of a cancelled call, too: on_done does
  // not come before. From any thread.
  void ReadOn() { StartRead(&event_); }

 private:
  void Start();
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::shared_ptr<v1::Generation::Stub> stub_;
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::AttachRequest attach_;  // of the two one is used
  v1::GenerateEvent event_;
  Handlers handlers_;
};

}  // namespace lockstep
