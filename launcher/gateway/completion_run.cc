#include "launcher/gateway/completion_run.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "kernels/base/steady_clock.h"
#include "launcher/gateway/openai_error.h"
#include "launcher/gateway/upstream.h"

namespace lockstep {
namespace {

constexpr absl::Duration kLookAtClientEvery = absl::Milliseconds(250);
// Proxies between us and the client take a long silence for its end.
constexpr absl::Duration kSilence = absl::Seconds(15);
constexpr char kStillHere[] = ": waiting\n\n";  // a comment (HTML Standard, server-sent events)
// Of one answer, as messages: what has come is kept, to be sent at the end, or to go on with it
// where the server comes back.
constexpr int64_t kMaxAnswerBytes = 64 << 20;
// Of that, what a client has not been told; more stays at the server, which merges what nobody
// reads. What comes before a stream begins (not all its prompts are accepted yet) counts as told.
constexpr int64_t kMaxUntoldBytes = 64 << 10;
// Of a stream, written before others have their turn.
constexpr size_t kMaxWriteBytes = 64 << 10;
constexpr int64_t kMaxAnswerAtOnce = 1 << 20;  // of an answer: some milliseconds to write
constexpr int64_t kEventBytes = 256;           // what an event's JSON has besides

}  // namespace

// Filled and emptied on the exchange's thread alone: gRPC's threads post to it.
class CompletionRun::Inbox {
 public:
  explicit Inbox(boost::asio::any_io_executor executor) : wakeup_(std::move(executor)) {}

  // Whether there is room for what comes next.
  static bool Post(const std::shared_ptr<Inbox>& inbox, Arrival arrival) {
    arrival.num_bytes = static_cast<int64_t>(arrival.event.ByteSizeLong()) + kEventBytes;
    const int64_t untold =
        inbox->num_untold_.fetch_add(arrival.num_bytes, std::memory_order_relaxed);
    const bool has_room = untold + arrival.num_bytes <= kMaxUntoldBytes;
    arrival.stops_reading = !has_room && !arrival.done;
    boost::asio::post(inbox->wakeup_.get_executor(),
                      [inbox, arrival = std::move(arrival)]() mutable {
                        inbox->num_bytes_ += arrival.num_bytes;
                        inbox->arrivals_.push_back(std::move(arrival));
                        inbox->wakeup_.cancel();
                      });
    return has_room;
  }
  void Told(const Arrival& arrival) {
    num_untold_.fetch_sub(arrival.num_bytes, std::memory_order_relaxed);
  }

  Awaitable<void> WaitFor(absl::Duration timeout) {
    if (!arrivals_.empty()) co_return;
    boost::system::error_code cancelled;
    wakeup_.expires_after(absl::ToChronoNanoseconds(timeout));
    co_await wakeup_.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, cancelled));
  }

  // Of all that ever came.
  int64_t num_bytes() const { return num_bytes_; }

  std::deque<Arrival> TakeAll() { return std::exchange(arrivals_, {}); }

 private:
  boost::asio::steady_timer wakeup_;
  std::deque<Arrival> arrivals_;
  int64_t num_bytes_ = 0;
  std::atomic<int64_t> num_untold_{0};  // of those posted
};

Awaitable<void> CompletionRun::Run(std::vector<v1::GenerateRequest> requests) {
  inbox_ = std::make_shared<Inbox>(co_await boost::asio::this_coro::executor);
  looked_at_ = wrote_at_ = SteadyNow();
  num_running_ = requests.size();
  for (size_t prompt = 0; prompt < requests.size(); ++prompt) {
    outputs_.push_back({.call = nullptr, .retries = RetryClock(patience_)});
    Call(prompt, std::move(requests[prompt]));
  }
  while (num_running_ > 0) co_await Pump();
  co_await Finish();
}

template <typename Request>
void CompletionRun::Call(size_t prompt, Request request) {
  const auto on_event = [inbox = inbox_, prompt](const v1::GenerateEvent& event) {
    return Inbox::Post(inbox, {prompt, event, std::nullopt});
  };
  const auto on_done = [inbox = inbox_, prompt](const grpc::Status& status) {
    Inbox::Post(inbox, {prompt, {}, status});
  };
  outputs_[prompt].call = std::make_unique<GenerationCall>(
      connection_, std::move(request), absl::InfiniteDuration(),
      GenerationCall::Handlers{on_event, on_done}, exchange_.request().authorization);
}

// Returns how long until the next one is due.
absl::Duration CompletionRun::ContinueThoseDue() {
  const absl::Time now = SteadyNow();
  absl::Time next = absl::InfiniteFuture();
  for (size_t prompt = 0; prompt < outputs_.size(); ++prompt) {
    Output& output = outputs_[prompt];
    if (output.continue_at <= now) {
      output.continue_at = absl::InfiniteFuture();
      Call(prompt, reply_.Continuation(prompt));
    }
    next = std::min(next, output.continue_at);
  }
  return next - now;
}

// Calls that run end soon, and say so; who only waits for a server has ended.
void CompletionRun::EndAll() {
  for (Output& output : outputs_) {
    if (output.call != nullptr) output.call->Cancel();
    if (std::exchange(output.continue_at, absl::InfiniteFuture()) != absl::InfiniteFuture()) {
      --num_running_;
    }
  }
}

// What has come, and a look at the client now and then.
Awaitable<void> CompletionRun::Pump() {
  const absl::Duration due = ContinueThoseDue();
  co_await inbox_->WaitFor(std::min(due, kLookAtClientEvery));
  if (inbox_->num_bytes() > kMaxAnswerBytes) {
    // Not RESOURCE_EXHAUSTED, upon which clients try the same again.
    Fail({grpc::StatusCode::OUT_OF_RANGE,
          absl::StrCat("the answer is longer than ", kMaxAnswerBytes, " bytes")});
  }
  const std::deque<Arrival> arrivals = inbox_->TakeAll();
  for (const Arrival& arrival : arrivals) {
    co_await Take(arrival);
    if (unsent_.size() >= kMaxWriteBytes) co_await Flush();
    inbox_->Told(arrival);
    if (arrival.stops_reading) outputs_[arrival.prompt].call->ReadOn();
  }
  co_await Flush();
  co_await LookAtClient();
}

Awaitable<void> CompletionRun::Take(const Arrival& arrival) {
  if (arrival.done) {
    outputs_[arrival.prompt].call.reset();
    Ended(arrival.prompt, *arrival.done);
  } else if (!failure_ && !is_gone_) {
    co_await Tell(arrival);
  }
}

Awaitable<void> CompletionRun::Tell(const Arrival& arrival) {
  outputs_[arrival.prompt].retries.Succeeded();
  reply_.Add(arrival.prompt, arrival.event);
  if (!asked_.stream) co_return;
  for (const auto& chunk : reply_.Chunks(arrival.prompt, arrival.event)) {
    AppendEvent(DumpJson(chunk));
  }
  // Not before all are accepted: what is refused gets a status of its own.
  const bool begins = !has_begun_ && arrival.event.has_accepted() && reply_.all_accepted();
  if (begins) co_await Begin();
}

// One that fails ends them all, unless its server may come back for it.
void CompletionRun::Ended(size_t prompt, const grpc::Status& status) {
  Output& output = outputs_[prompt];
  if (!status.ok() && !failure_ && !is_gone_ && !reply_.is_complete(prompt)) {
    if (reply_.is_attachable(prompt) && MayGoOn(status.error_code(), output.retries)) {
      const std::optional<absl::Time> at = output.retries.Failed(SteadyNow());
      if (at) {
        output.continue_at = *at;
        return;
      }
    }
    Fail(status);
  }
  --num_running_;
}

void CompletionRun::Fail(const grpc::Status& status) {
  if (failure_) return;
  failure_ = status;
  EndAll();
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
  if (is_gone_) EndAll();
}

Awaitable<void> CompletionRun::Finish() {
  if (is_gone_) co_return;
  if (failure_) {
    const absl::Status why =
        AboutConstraint(UpstreamError(connection_, *failure_), asked_.constraint_field);
    if (!has_begun_) {
      co_await exchange_.Reply(OpenAiError(why));
      co_return;
    }
    AppendEvent(DumpJson(OpenAiErrorJson(why)));
  } else if (!asked_.stream) {
    HttpReply reply;
    const auto write = [&] { reply.body = reply_.WholeText(); };
    absl::Status ran;
    if (inbox_->num_bytes() > kMaxAnswerAtOnce) {
      ran = co_await side_thread_.Run(exchange_, write);
    } else {
      write();
    }
    if (ran.ok()) co_await exchange_.Reply(std::move(reply));
    co_return;
  } else if (asked_.include_usage) {
    AppendEvent(DumpJson(reply_.UsageChunk()));
  }
  AppendEvent("[DONE]");
  co_await Flush();
  if (!is_gone_) co_await exchange_.EndStream();
}

}  // namespace lockstep
