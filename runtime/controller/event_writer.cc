#include "runtime/controller/event_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/controller/wire.h"

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
  const int64_t num_bytes = static_cast<int64_t>(event.ByteSizeLong());
  if (pending_bytes_ + num_bytes > max_unread_bytes_) {
    pending_.clear();
    pending_bytes_ = 0;
    closing_ = true;
    status_ = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                           absl::StrCat("the client left more than ", max_unread_bytes_,
                                        " bytes of this stream unread"));
    AdvanceLocked();
    return false;
  }
  pending_bytes_ += num_bytes;
  if (!MergeLocked(event, num_bytes)) pending_.push_back({std::move(event), num_bytes});
  AdvanceLocked();
  return true;
}

// Events of one output stay in order: a delta joins the last waiting event of its output, if that
// is a delta.
bool EventWriter::MergeLocked(const v1::GenerateEvent& event, int64_t num_bytes) {
  if (!event.has_delta()) return false;
  const auto waiting = std::find_if(pending_.rbegin(), pending_.rend(), [&](const Pending& other) {
    return other.event.has_delta() &&
           other.event.delta().output_index() == event.delta().output_index();
  });
  if (waiting == pending_.rend()) return false;
  v1::TokenDelta& merged = *waiting->event.mutable_delta();
  merged.mutable_token_ids()->MergeFrom(event.delta().token_ids());
  merged.mutable_text()->append(event.delta().text());
  merged.mutable_logprobs()->MergeFrom(event.delta().logprobs());
  waiting->num_bytes += num_bytes;
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
  if (pending_.empty()) {
    if (!closing_) return;
    finished_ = true;
    Finish(status_);
    return;
  }
  in_flight_ = SerializeMessage(pending_.front().event);
  pending_bytes_ -= pending_.front().num_bytes;
  pending_.pop_front();
  if (closing_ && pending_.empty()) {
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
  if (!ok) pending_.clear();
  AdvanceLocked();
}

void EventWriter::OnCancel() {
  absl::AnyInvocable<void()> on_cancel;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    pending_.clear();
    pending_bytes_ = 0;
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
