#include "launcher/gateway/side_thread.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "launcher/gateway/upstream.h"

namespace lockstep {

Awaitable<absl::Status> SideThread::RunIfSoon(HttpExchange& exchange, std::function<void()> work) {
  if (waiting_.size() >= kMaxWaiting) {
    co_return absl::ResourceExhaustedError(
        absl::StrCat(waiting_.size(), " requests wait to be read: retry later"));
  }
  co_return co_await Run(exchange, std::move(work));
}

Awaitable<absl::Status> SideThread::Run(HttpExchange& exchange, std::function<void()> work) {
  if (is_busy_) {
    boost::asio::steady_timer turn(co_await boost::asio::this_coro::executor);
    turn.expires_at(boost::asio::steady_timer::time_point::max());
    waiting_.push_back(&turn);
    boost::system::error_code cancelled;
    co_await turn.async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, cancelled));
  }
  is_busy_ = true;  // whoever left kept it so for this one
  const absl::Cleanup leave = [this] { Leave(); };
  if (exchange.PeerHasGone()) co_return absl::CancelledError("the client has gone");
  co_await AwaitCall([this, &work](std::function<void(grpc::Status)> on_done) {
    boost::asio::post(thread_, [&work, on_done = std::move(on_done)] {
      work();
      on_done(grpc::Status::OK);
    });
  });
  co_return absl::OkStatus();
}

void SideThread::Leave() {
  if (waiting_.empty()) {
    is_busy_ = false;
    return;
  }
  boost::asio::steady_timer* const next = waiting_.front();
  waiting_.pop_front();
  next->cancel();
}

}  // namespace lockstep
