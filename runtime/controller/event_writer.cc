#include "runtime/controller/event_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"

namespace lockstep {

namespace {

// Long enough for a queue to move or for another server to be chosen.
constexpr char kRetryPushbackMs[] = "1000";

}  // namespace

std::shared_ptr<EventWriter> EventWriter::Create(grpc::CallbackServerContext& context,
                                                 const UnreadLimits& limits) {
  std::shared_ptr<EventWriter> writer(new EventWriter(context, limits));
  writer->self_ = writer;
  return writer;
}

void EventWriter::SetOnCancel(absl::AnyInvocable<void()> on_cancel) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cancelled_) {
      if (!finished_) on_cancel_ = std::move(on_cancel);
      return;
    }
  }
  on_cancel();
}

bool EventWriter::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

bool EventWriter::Write(v1::GenerateEvent event) {
  absl::MutexLock lock(&mutex_);
  if (closing_ || cancelled_) return true;
  has_written_ = true;
  waiting_.Push(std::move(event));
  if (waiting_.held_bytes() + in_flight_bytes_ > limits_.max_bytes) {
    waiting_.Clear();
    CloseLocked(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                             absl::StrCat("the client left more than ", limits_.max_bytes,
                                          " bytes of this stream unread")));
    return false;
  }
  AdvanceLocked();
  return true;
}

void EventWriter::Close(grpc::Status status) {
  absl::MutexLock lock(&mutex_);
  if (!closing_) CloseLocked(std::move(status));
}

void EventWriter::CloseLocked(grpc::Status status) {
  closing_ = true;
  status_ = std::move(status);
  HintRetryLocked();
  AdvanceLocked();
  if (!cancelled_) WatchReaderLocked();
}

void EventWriter::WatchReaderLocked() {
  alarm_ = std::make_unique<grpc::Alarm>();  // one that has rung may be the caller
  alarm_->Set(absl::ToChronoTime(absl::Now() + limits_.patience),
              [writer = std::weak_ptr(self_), num_written = num_written_](bool rang) {
                const std::shared_ptr<EventWriter> alive = rang ? writer.lock() : nullptr;
                if (alive != nullptr) alive->EndIfUnread(num_written);
              });
}

// gRPC would hold an orderly end back behind the message that the client has no room for.
void EventWriter::EndIfUnread(int64_t num_written) {
  grpc_call* call = nullptr;
  grpc::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (done_ || cancelled_) return;
    if (num_written_ != num_written) return WatchReaderLocked();
    if (status_.ok()) {
      status_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                             absl::StrCat("the client read nothing of this complete stream for ",
                                          absl::FormatDuration(limits_.patience)));
    }
    status = status_;
    call = context_.c_call();
    grpc_call_ref(call);
  }
  grpc_call_cancel_with_status(call, static_cast<grpc_status_code>(status.error_code()),
                               status.error_message().c_str(), nullptr);
  grpc_call_unref(call);
}

void EventWriter::HintRetryLocked() {
  const grpc::StatusCode code = status_.error_code();
  const bool may_retry =
      code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::RESOURCE_EXHAUSTED;
  if (!may_retry || has_written_ || finished_ || cancelled_) return;
  context_.AddTrailingMetadata("grpc-retry-pushback-ms", kRetryPushbackMs);
}

// Starts the next write or ends the call, unless a write is under way.
void EventWriter::AdvanceLocked() {
  if (writing_ || finished_) return;
  if (cancelled_) {
    finished_ = true;
    Finish(grpc::Status::CANCELLED);
    return;
  }
  if (waiting_.empty()) {
    if (!closing_) return;
    finished_ = true;
    Finish(status_);
    return;
  }
  in_flight_ = waiting_.Pop();
  in_flight_bytes_ = static_cast<int64_t>(in_flight_.Length());
  if (closing_ && waiting_.empty()) {
    finished_ = true;
    StartWriteAndFinish(&in_flight_, grpc::WriteOptions(), status_);
    return;
  }
  writing_ = true;
  StartWrite(&in_flight_);
}

void EventWriter::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  in_flight_.Clear();
  in_flight_bytes_ = 0;
  ++num_written_;
  if (!ok) waiting_.Clear();
  AdvanceLocked();
}

void EventWriter::OnCancel() {
  absl::AnyInvocable<void()> on_cancel;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    waiting_.Clear();
    on_cancel = std::move(on_cancel_);
    on_cancel_ = nullptr;
    AdvanceLocked();
  }
  if (on_cancel) on_cancel();
}

void EventWriter::SetOnDone(absl::AnyInvocable<void(const grpc::Status&, bool)> on_done) {
  grpc::Status status;
  bool told = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!done_) {
      on_done_ = std::move(on_done);
      return;
    }
    status = status_;
    told = !cancelled_;
  }
  on_done(status, told);
}

void EventWriter::OnDone() {
  absl::AnyInvocable<void()> on_cancel;
  absl::AnyInvocable<void(const grpc::Status&, bool)> on_done;
  grpc::Status status;
  bool told = false;
  {
    absl::MutexLock lock(&mutex_);
    finished_ = true;
    done_ = true;
    alarm_ = nullptr;
    on_cancel = std::move(on_cancel_);  // breaks the hold on whatever it captured
    on_cancel_ = nullptr;
    on_done = std::move(on_done_);
    on_done_ = nullptr;
    status = status_;
    told = !cancelled_;
  }
  if (on_done) on_done(status, told);
  std::shared_ptr<EventWriter> self = std::move(self_);
}

}  // namespace lockstep
