#include "runtime/controller/event_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {

namespace {

// Long enough for a queue to move or for another server to be chosen.
constexpr char kRetryPushbackMs[] = "1000";

}  // namespace

std::shared_ptr<EventWriter> EventWriter::Create(grpc::CallbackServerContext& context,
                                                 int64_t max_unread_bytes) {
  std::shared_ptr<EventWriter> writer(new EventWriter(context, max_unread_bytes));
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
  if (waiting_.held_bytes() + in_flight_bytes_ > max_unread_bytes_) {
    waiting_.Clear();
    closing_ = true;
    status_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                           absl::StrCat("the client left more than ", max_unread_bytes_,
                                        " bytes of this stream unread"));
    AdvanceLocked();
    return false;
  }
  AdvanceLocked();
  return true;
}

void EventWriter::Close(grpc::Status status) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return;
  closing_ = true;
  status_ = std::move(status);
  HintRetryLocked();
  AdvanceLocked();
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
