// The server behind the gateway: its unary calls as something to await, and its errors for HTTP
// clients.
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "launcher/client/connection.h"
#include "launcher/http/http_exchange.h"

namespace lockstep {

// Goes on in the coroutine's executor. The io_context must outlive the call, whose work it does not
// count: keep a work guard. start: begins the call, and has the function that it is given called
// once with its status, on any thread. What start captures must live until then.
inline Awaitable<grpc::Status> AwaitCall(
    std::function<void(std::function<void(grpc::Status)>)> start) {
  const auto executor = co_await boost::asio::this_coro::executor;
  const auto initiate = [executor, start = std::move(start)](auto handler) {
    // shared: std::function wants what can be copied, and a handler can only be moved.
    auto resume = std::make_shared<decltype(handler)>(std::move(handler));
    start([executor, resume](grpc::Status status) {
      boost::asio::post(executor, [resume, status = std::move(status)]() mutable {
        (*resume)(std::move(status));
      });
    });
  };
  co_return co_await boost::asio::async_initiate<const boost::asio::use_awaitable_t<>,
                                                 void(grpc::Status)>(initiate,
                                                                     boost::asio::use_awaitable);
}

// What the server says, as it is; but who does not reach it says no more than that: addresses and
// flags are the gateway's own.
inline absl::Status UpstreamError(const Connection& connection, const grpc::Status& status) {
  const bool is_away = connection.WhyUnreachable(status).has_value();
  return {static_cast<absl::StatusCode>(status.error_code()),
          is_away ? "the server behind this gateway does not answer" : status.error_message()};
}

}  // namespace lockstep
