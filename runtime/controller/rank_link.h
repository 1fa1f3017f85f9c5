// One rank's stream to the controller, and the service that accepts them.
//
// gRPC's threads read; any thread sends. Nothing is read of a call that does not show the secret,
// and nothing a stream says reaches the event loop before its Hello showed it, too.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "runtime/controller/rank_port.h"

namespace lockstep {

class EventLoop;

class RankLink final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                       public RankPort {
 public:
  // The caller hands the returned object to gRPC, and calls Listen or Close. num_open, which may be
  // null, is decremented when the stream is done.
  static std::shared_ptr<RankLink> Open(grpc::CallbackServerContext* context,
                                        std::shared_ptr<EventLoop> loop, std::string secret,
                                        std::shared_ptr<std::atomic<int>> num_open);
  // Reads from now on. Once.
  void Listen(absl::Duration hello_timeout);

  void Send(const grpc::ByteBuffer& message) override;
  void Close(grpc::Status status) override;
  void CloseNow(grpc::Status status) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  RankLink(grpc::CallbackServerContext* context, std::shared_ptr<EventLoop> loop,
           std::string secret, std::shared_ptr<std::atomic<int>> num_open);
  bool Dispatch();
  void ReportClosed(std::string why);
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CallbackServerContext* const context_;
  // Shared: the last stream may end after the controller let go of its loop.
  const std::shared_ptr<EventLoop> loop_;
  const std::string secret_;
  const std::shared_ptr<std::atomic<int>> num_open_;
  std::shared_ptr<RankLink> self_;  // gRPC's hold: until OnDone
  grpc::ByteBuffer incoming_;       // of the read under way
  bool greeted_ = false;            // read side only
  grpc::Alarm hello_deadline_;
  std::atomic<bool> reported_{false};

  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
};

class WorkerLinkService final
    : public v1::WorkerLink::WithRawCallbackMethod_Connect<v1::WorkerLink::Service> {
 public:
  WorkerLinkService(std::shared_ptr<EventLoop> loop, std::string secret, int world_size,
                    absl::Duration hello_timeout);
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Connect(
      grpc::CallbackServerContext* context) override;

 private:
  bool ShowsSecret(const grpc::CallbackServerContext& context) const;

  const std::shared_ptr<EventLoop> loop_;
  const std::string secret_;
  const int max_open_;
  const absl::Duration hello_timeout_;
  // Of those that showed the secret. Streams may end after the service.
  const std::shared_ptr<std::atomic<int>> num_open_;
};

}  // namespace lockstep
