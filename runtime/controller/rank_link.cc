#include "runtime/controller/rank_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/controller/event_loop.h"
#include "runtime/controller/wire.h"
#include "runtime/security/api_tokens.h"
#include "runtime/worker/link_limits.h"

namespace lockstep {

RankLink::RankLink(grpc::CallbackServerContext* context, std::shared_ptr<EventLoop> loop,
                   std::string secret, std::shared_ptr<std::atomic<int>> num_open)
    : context_(context),
      loop_(std::move(loop)),
      secret_(std::move(secret)),
      num_open_(std::move(num_open)) {}

std::shared_ptr<RankLink> RankLink::Open(grpc::CallbackServerContext* context,
                                         std::shared_ptr<EventLoop> loop, std::string secret,
                                         std::shared_ptr<std::atomic<int>> num_open) {
  std::shared_ptr<RankLink> link(
      new RankLink(context, std::move(loop), std::move(secret), std::move(num_open)));
  link->self_ = link;
  return link;
}

void RankLink::Listen(absl::Duration hello_timeout) {
  StartRead(&incoming_);
  // A stranger must not hold a place for ever.
  hello_deadline_.Set(
      absl::ToChronoTime(absl::Now() + hello_timeout),
      [weak = std::weak_ptr<RankLink>(self_)](bool expired) {
        const std::shared_ptr<RankLink> late = weak.lock();
        if (!expired || late == nullptr) return;
        late->CloseNow(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no Hello came in time"));
      });
}

void RankLink::Send(const grpc::ByteBuffer& message) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return;
  outgoing_.push_back(message);
  AdvanceLocked();
}

void RankLink::Close(grpc::Status status) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return;
  closing_ = true;
  status_ = std::move(status);
  AdvanceLocked();
}

void RankLink::CloseNow(grpc::Status status) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return;
  closing_ = true;
  status_ = std::move(status);
  // With a write under way the peer may never take it: then only a reset ends the stream, and its
  // status is lost.
  if (writing_ && !done_) context_->TryCancel();
  while (outgoing_.size() > (writing_ ? 1u : 0u)) outgoing_.pop_back();
  AdvanceLocked();
}

void RankLink::AdvanceLocked() {
  if (writing_ || finished_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (closing_) {
    finished_ = true;
    Finish(status_);
  }
}

void RankLink::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  outgoing_.pop_front();
  if (!ok) outgoing_.clear();
  AdvanceLocked();
}

void RankLink::OnReadDone(bool ok) {
  if (!ok) {
    ReportClosed("its stream closed");
    Close(grpc::Status::OK);
    return;
  }
  if (!Dispatch()) return;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
  }
  StartRead(&incoming_);
}

// One message to the event loop; false when it ended the stream.
bool RankLink::Dispatch() {
  v1::FromRank message;
  const absl::Status parsed = ParseMessage(incoming_, message);
  incoming_.Clear();
  if (!parsed.ok()) {
    ReportClosed(absl::StrCat("it sent a malformed message: ", parsed.message()));
    Close(ToGrpcStatus(parsed));
    return false;
  }
  if (!greeted_) {
    if (!message.has_hello() || !EqualInConstantTime(message.hello().secret(), secret_)) {
      Close(grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                         "the first message must be a Hello with this launch's secret"));
      return false;
    }
    greeted_ = true;
    hello_deadline_.Cancel();
    message.mutable_hello()->clear_secret();
  }
  loop_->RankSaid(self_, std::move(message));
  return true;
}

void RankLink::ReportClosed(std::string why) {
  if (!greeted_ || reported_.exchange(true)) return;
  loop_->RankClosed(self_, std::move(why));
}

void RankLink::OnCancel() { Close(grpc::Status::CANCELLED); }

void RankLink::OnDone() {
  {
    absl::MutexLock lock(&mutex_);
    done_ = true;
    closing_ = true;
  }
  ReportClosed("its stream closed");
  if (num_open_ != nullptr) num_open_->fetch_sub(1);
  std::shared_ptr<RankLink> self = std::move(self_);
}

WorkerLinkService::WorkerLinkService(std::shared_ptr<EventLoop> loop, std::string secret,
                                     int world_size, absl::Duration hello_timeout)
    : loop_(std::move(loop)),
      secret_(std::move(secret)),
      max_open_(2 * world_size + 64),
      hello_timeout_(hello_timeout),
      num_open_(std::make_shared<std::atomic<int>>(0)) {}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* WorkerLinkService::Connect(
    grpc::CallbackServerContext* context) {
  const bool shows_secret = ShowsSecret(*context);
  const int num_others = shows_secret ? num_open_->fetch_add(1) : 0;
  std::shared_ptr<RankLink> link =
      RankLink::Open(context, loop_, secret_, shows_secret ? num_open_ : nullptr);
  if (!shows_secret) {
    link->Close(grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                             "the call does not show this launch's secret"));
  } else if (num_others >= max_open_) {
    link->Close(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                             absl::StrCat("already ", num_others, " ranks are connected")));
  } else {
    link->Listen(hello_timeout_);
  }
  return link.get();
}

bool WorkerLinkService::ShowsSecret(const grpc::CallbackServerContext& context) const {
  const auto shown = context.client_metadata().find(kLinkSecretKey);
  return shown != context.client_metadata().end() &&
         EqualInConstantTime({shown->second.data(), shown->second.size()}, secret_);
}

}  // namespace lockstep
