// The write side of one Generate call: events in, bytes to the client, one write at a time.
//
// Thread-safe. A client that reads slowly stalls nobody: token deltas of one output that wait here
// are merged, and when what waits takes more than UnreadLimits::max_bytes of memory the call ends
// with RESOURCE_EXHAUSTED. So does a closed call whose client takes no message for
// UnreadLimits::patience (or up to twice as long): else what is left of it would be held for as
// long as its client lives. The object lives until gRPC says OnDone and its last shared_ptr is gone
// (the event loop, the stream thread and gRPC hold it independently of each other).
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "lockstep/v1/generation.pb.h"
#include "runtime/controller/event_queue.h"

namespace lockstep {

// What a client may leave unread.
struct UnreadLimits {
  int64_t max_bytes = 0;    // of memory, in one stream
  absl::Duration patience;  // once the stream is complete
};

class EventWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // The caller hands the returned object to gRPC. context: the call's.
  static std::shared_ptr<EventWriter> Create(grpc::CallbackServerContext& context,
                                             const UnreadLimits& limits);

  // Called once if the client cancels or disconnects before the call ended; at once when it already
  // has.
  void SetOnCancel(absl::AnyInvocable<void()> on_cancel);
  bool cancelled() const;
  // Called once when the call is over: how it ended, and whether the client was there to be told.
  void SetOnDone(absl::AnyInvocable<void(const grpc::Status& status, bool told)> on_done);

  // False when the client left too much unread: the call then ends with RESOURCE_EXHAUSTED. Ignored
  // after Close.
  bool Write(v1::GenerateEvent event);
  // The call ends with this status once everything written is out. The first Close counts. A call
  // that is refused UNAVAILABLE or RESOURCE_EXHAUSTED before anything was written tells when to try
  // again (trailing metadata grpc-retry-pushback-ms, gRFC A6).
  void Close(grpc::Status status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  EventWriter(grpc::CallbackServerContext& context, const UnreadLimits& limits)
      : context_(context), limits_(limits) {}
  void CloseLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WatchReaderLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfUnread(int64_t num_written);
  void HintRetryLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CallbackServerContext& context_;  // until the call is finished
  const UnreadLimits limits_;
  std::shared_ptr<EventWriter> self_;  // gRPC's hold: until OnDone
  mutable absl::Mutex mutex_;
  EventQueue waiting_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer in_flight_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_written_ ABSL_GUARDED_BY(mutex_) = 0;  // messages that the client has room for
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);  // of a closed call
  bool has_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::AnyInvocable<void()> on_cancel_ ABSL_GUARDED_BY(mutex_);
  absl::AnyInvocable<void(const grpc::Status&, bool)> on_done_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
