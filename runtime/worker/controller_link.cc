#include "runtime/worker/controller_link.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "runtime/worker/link_limits.h"

namespace lockstep {
namespace {

// An attempt may take so long; a host that is gone does not refuse it.
constexpr int kConnectTimeoutMs = 1000;

grpc::ChannelArguments LinkArguments(const DialOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kLinkMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kLinkMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kLinkRankKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kLinkRankKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto set_pause = [&](const char* name, absl::Duration pause) {
    arguments.SetInt(name, static_cast<int>(absl::ToInt64Milliseconds(pause)));
  };
  set_pause(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, options.first_pause);
  set_pause(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, options.longest_pause);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  // An http_proxy in the environment is not meant for this.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

// False when the time is over.
absl::StatusOr<bool> WaitConnected(grpc::Channel& channel, const DialOptions& options) {
  const absl::Time deadline = SteadyNow() + options.timeout;
  while (true) {
    const absl::Duration left = deadline - SteadyNow();
    const absl::Duration look = absl::FromChrono(kCheckInterval);
    const bool watches = options.check != nullptr && look < left;
    const absl::Time until = absl::Now() + (watches ? look : left);
    if (channel.WaitForConnected(absl::ToChronoTime(until))) return true;
    if (!watches) return false;
    RETURN_IF_ERROR(options.check());
  }
}

// A channel keeps its reason to itself; a call that does not wait for it is told.
std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  const auto stream = v1::WorkerLink::NewStub(channel)->Connect(&context);
  return stream->Finish().error_message();
}

absl::Status WhyClosed(const std::string& address, const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::FailedPreconditionError(absl::StrCat(
          "the controller at ", address, " refuses this rank: ", status.error_message()));
    case grpc::StatusCode::ALREADY_EXISTS:  // other ranks have its place
      return absl::AlreadyExistsError(absl::StrCat("the controller at ", address,
                                                   " refuses this rank: ", status.error_message()));
    case grpc::StatusCode::OK:
      return absl::UnavailableError(
          absl::StrCat("the controller at ", address, " closed the stream"));
    default:
      return absl::UnavailableError(
          absl::StrCat("lost the controller at ", address, ": ", status.error_message()));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControllerLink>> ControllerLink::Dial(const std::string& address,
                                                                     const DialSecurity& security,
                                                                     const DialOptions& options) {
  grpc::ChannelArguments arguments = LinkArguments(options);
  const auto credentials = ChannelCredentialsOf(security, address, arguments);
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, credentials, arguments);
  ASSIGN_OR_RETURN(const bool connected, WaitConnected(*channel, options));
  if (!connected) {
    return absl::UnavailableError(absl::StrCat("no controller answers at ", address, " within ",
                                               absl::FormatDuration(options.timeout), ": ",
                                               WhyNotConnected(channel)));
  }
  return std::unique_ptr<ControllerLink>(new ControllerLink(address, std::move(channel)));
}

ControllerLink::ControllerLink(std::string address, std::shared_ptr<grpc::Channel> channel)
    : address_(std::move(address)),
      channel_(std::move(channel)),
      stub_(v1::WorkerLink::NewStub(channel_)) {}

ControllerLink::~ControllerLink() { End(); }

void ControllerLink::Start(const std::string& secret, LinkHandlers handlers) {
  handlers_ = std::move(handlers);
  context_.AddMetadata(kLinkSecretKey, secret);
  {
    std::lock_guard lock(mutex_);
    started_ = true;
    may_write_ = true;
  }
  stub_->async()->Connect(&context_, this);
  AddHold();  // Send starts writes from outside the reactor, until StopWriting
  StartRead(&incoming_);
  StartCall();
}

void ControllerLink::End() {
  std::unique_lock lock(mutex_);
  if (!started_) return;
  context_.TryCancel();
  changed_.wait(lock, [&] { return done_; });
}

void ControllerLink::Send(v1::FromRank message) {
  std::lock_guard lock(mutex_);
  if (!may_write_ || finishing_) return;
  outgoing_.push_back(std::move(message));
  AdvanceLocked();
}

void ControllerLink::Finish(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  finishing_ = true;
  AdvanceLocked();
  changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout), [&] { return done_ || !started_; });
}

void ControllerLink::AdvanceLocked() {
  if (writing_ || half_closed_ || !may_write_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
  } else if (finishing_) {
    half_closed_ = true;
    StartWritesDone();
  }
}

void ControllerLink::OnWriteDone(bool) {
  std::lock_guard lock(mutex_);
  outgoing_.pop_front();
  writing_ = false;
  AdvanceLocked();  // a failed write is followed by OnReadDone(false)
}

void ControllerLink::OnReadDone(bool ok) {
  if (!ok) {
    StopWriting();  // then OnDone follows, with the reason
    return;
  }
  handlers_.on_message(incoming_);
  StartRead(&incoming_);
}

void ControllerLink::StopWriting() {
  {
    std::lock_guard lock(mutex_);
    may_write_ = false;
  }
  RemoveHold();
}

void ControllerLink::OnDone(const grpc::Status& status) {
  handlers_.on_closed(WhyClosed(address_, status));
  std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

}  // namespace lockstep
