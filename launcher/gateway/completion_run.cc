#include "launcher/gateway/completion_run.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "kernels/base/steady_clock.h"
#include "launcher/gateway/upstream.h"

namespace lockstep {
namespace {

constexpr absl::Duration kLookAtClientEvery = absl::Milliseconds(250);
// Proxies between us and the client take a long silence for its end.
constexpr absl::Duration kSilence = absl::Seconds(15);
constexpr char kStillHere[] = ": waiting\n\n";  // a comment (HTML Standard, server-sent events)
// What a client that reads slowly may leave with us, as with the server.
constexpr int64_t kMaxUnreadBytes = 16 << 20;

}  // namespace

// Filled and emptied on the exchange's thread alone: gRPC's threads post to it.
class CompletionRun::Inbox {
 public:
  explicit Inbox(boost::asio::any_io_executor executor) : wakeup_(std::move(executor)) {}

  static void Post(const std::shared_ptr<Inbox>& inbox, Arrival arrival) {
    boost::asio::post(inbox->wakeup_.get_executor(),
                      [inbox, arrival = std::move(arrival)]() mutable {
                        inbox->bytes_ += static_cast<int64_t>(arrival.event.ByteSizeLong());
                        inbox->arrivals_.push_back(std::move(arrival));
                        inbox->wakeup_.cancel();
                      });
  }

  Awaitable<void> WaitFor(absl::Duration timeout) {
    if (!arrivals_.empty()) co_return;
    boost::system::error_code cancelled;
    wakeup_.expires_after(absl::ToChronoNanoseconds(timeout));
    co_await wakeup_.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, cancelled));
  }

  bool is_full() const { return bytes_ > kMaxUnreadBytes; }

  std::deque<Arrival> TakeAll() {
    bytes_ = 0;
    return std::exchange(arrivals_, {});
  }

 private:
  boost::asio::steady_timer wakeup_;
  std::deque<Arrival> arrivals_;
  int64_t bytes_ = 0;
};

Awaitable<void> CompletionRun::Run(std::vector<v1::GenerateRequest> requests) {
  inbox_ = std::make_shared<Inbox>(co_await boost::asio::this_coro::executor);
  looked_at_ = wrote_at_ = SteadyNow();
  Start(std::move(requests));
  while (num_running_ > 0) co_await Pump();
  co_await Finish();
}

void CompletionRun::Start(std::vector<v1::GenerateRequest> requests) {
  for (size_t prompt = 0; prompt < requests.size(); ++prompt) {
    const auto on_event = [inbox = inbox_, prompt](const v1::GenerateEvent& event) {
      Inbox::Post(inbox, {prompt, event, std::nullopt});
    };
    const auto on_done = [inbox = inbox_, prompt](const grpc::Status& status) {
      Inbox::Post(inbox, {prompt, {}, status});
    };
    calls_.push_back(std::make_unique<GenerationCall>(
        connection_, std::move(requests[prompt]), absl::InfiniteDuration(),
        GenerationCall::Handlers{on_event, on_done}, exchange_.request().authorization));
    ++num_running_;
  }
}

void CompletionRun::CancelAll() {
  for (const auto& call : calls_) {
    if (call != nullptr) call->Cancel();
  }
}

// What has come, and a look at the client now and then.
Awaitable<void> CompletionRun::Pump() {
  co_await inbox_->WaitFor(kLookAtClientEvery);
  if (inbox_->is_full() && !failure_) {
    failure_ = grpc::Status(
        grpc::StatusCode::RESOURCE_EXHAUSTED,
        absl::StrCat("more than ", kMaxUnreadBytes, " bytes of the output were left unread"));
    CancelAll();
  }
  for (Arrival& arrival : inbox_->TakeAll()) co_await Take(std::move(arrival));
  co_await Flush();
  co_await LookAtClient();
}

Awaitable<void> CompletionRun::Take(Arrival arrival) {
  if (arrival.done) {
    calls_[arrival.prompt].reset();
    --num_running_;
    co_await Ended(*arrival.done);
  } else if (!failure_ && !is_gone_) {
    co_await Told(arrival);
  }
}

Awaitable<void> CompletionRun::Told(const Arrival& arrival) {
  reply_.Add(arrival.prompt, arrival.event);
  if (asked_.stream) {
    for (const auto& chunk : reply_.Chunks(arrival.prompt, arrival.event)) {
      AppendEvent(DumpJson(chunk));
    }
  }
  if (!arrival.event.has_accepted()) co_return;
  // Not before all are accepted: what is refused gets a status of its own.
  if (++num_accepted_ == calls_.size() && asked_.stream) co_await Begin();
}

// One that fails ends them all.
Awaitable<void> CompletionRun::Ended(const grpc::Status& status) {
  if (status.ok() || failure_) co_return;
  failure_ = status;
  CancelAll();
}

Awaitable<void> CompletionRun::Begin() {
  has_begun_ = true;
  wrote_at_ = SteadyNow();
  const bool is_taken = co_await exchange_.BeginStream("text/event-stream; charset=utf-8");
  if (!is_taken) is_gone_ = true;
}

void CompletionRun::AppendEvent(absl::string_view data) {
  absl::StrAppend(&unsent_, "data: ", data, "\n\n");
}

Awaitable<void> CompletionRun::Flush() {
  if (!has_begun_ || unsent_.empty() || is_gone_) co_return;
  const std::string piece = std::exchange(unsent_, {});
  wrote_at_ = SteadyNow();
  const bool is_taken = co_await exchange_.Write(piece);
  if (!is_taken) is_gone_ = true;
}

Awaitable<void> CompletionRun::LookAtClient() {
  const absl::Time now = SteadyNow();
  if (now - looked_at_ < kLookAtClientEvery && !is_gone_) co_return;
  looked_at_ = now;
  if (has_begun_ && !is_gone_ && now - wrote_at_ >= kSilence) {
    unsent_ += kStillHere;
    co_await Flush();
  }
  if (!is_gone_) is_gone_ = exchange_.PeerHasGone();
  if (is_gone_) CancelAll();
}

Awaitable<void> CompletionRun::Finish() {
  if (is_gone_) co_return;
  if (failure_) {
    const absl::Status why = UpstreamError(connection_, *failure_);
    if (!has_begun_) {
      co_await exchange_.Reply(OpenAiError(why));
      co_return;
    }
    AppendEvent(DumpJson(OpenAiErrorJson(HttpStatusOf(why.code()), why.message())));
  } else if (!asked_.stream) {
    HttpReply reply;
    reply.body = DumpJson(reply_.Whole());
    co_await exchange_.Reply(std::move(reply));
    co_return;
  } else if (asked_.include_usage) {
    AppendEvent(DumpJson(reply_.UsageChunk()));
  }
  AppendEvent("[DONE]");
  co_await Flush();
  if (!is_gone_) co_await exchange_.EndStream();
}

}  // namespace lockstep
