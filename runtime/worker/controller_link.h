// A rank's stream to the controller: dials, reads in order, writes from a queue. Knows messages,
// not what they mean.
//
// Send may be called from any thread and never waits for the network. Messages and the end of the
// stream arrive on gRPC's threads, one at a time.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "runtime/security/tls.h"
#include "runtime/worker/checked_wait.h"

namespace lockstep {

struct DialOptions {
  absl::Duration timeout = absl::Seconds(30);
  // Between attempts: the first pause, and the longest to which it grows; gRPC adds jitter of 20 %.
  absl::Duration first_pause = absl::Milliseconds(20);
  absl::Duration longest_pause = absl::Milliseconds(500);
  WaitCheck check;  // called now and then by the calling thread
};

struct LinkHandlers {
  std::function<void(const v1::ToRank&)> on_message;
  // Last call. FAILED_PRECONDITION: the controller refuses this rank. UNAVAILABLE: the stream is
  // lost or was closed.
  std::function<void(const absl::Status&)> on_closed;
};

class ControllerLink final : private grpc::ClientBidiReactor<v1::FromRank, v1::ToRank> {
 public:
  // address: "unix:/path" or "host:port"; only the latter is encrypted. UNAVAILABLE with the reason
  // when nobody answers within the timeout; or the check's error.
  static absl::StatusOr<std::unique_ptr<ControllerLink>> Dial(const std::string& address,
                                                              const DialSecurity& security,
                                                              const DialOptions& options);
  ~ControllerLink() override;  // End()

  // Opens the stream, showing the launch's secret. Once.
  void Start(const std::string& secret, LinkHandlers handlers);
  // Cancels the stream and returns when no handler runs or will run any more. Not from a handler.
  void End();

  // In order. Dropped when the stream has ended: on_closed tells.
  void Send(v1::FromRank message);
  // No more Send: closes our half once everything is written and waits for the controller to take
  // it and to end the stream, or for the time to be over. Cancelling at once could overtake the
  // last messages.
  void Finish(absl::Duration timeout);

 private:
  ControllerLink(std::string address, std::shared_ptr<grpc::Channel> channel);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void StopWriting();
  void AdvanceLocked();

  const std::string address_;
  LinkHandlers handlers_;
  std::shared_ptr<grpc::Channel> channel_;  // as gRPC hands it out
  std::unique_ptr<v1::WorkerLink::Stub> stub_;
  grpc::ClientContext context_;
  v1::ToRank incoming_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::FromRank> outgoing_;  // the first is being written while writing_
  bool writing_ = false;
  bool started_ = false;
  bool may_write_ = false;  // false before Start and once the stream broke
  bool finishing_ = false;
  bool half_closed_ = false;
  bool done_ = false;
};

}  // namespace lockstep
