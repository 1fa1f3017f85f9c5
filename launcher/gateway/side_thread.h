// The thread for what takes long and would keep others' streams waiting: long bodies are parsed,
// conversations written by chat templates and long answers put into words, one after the other.
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>

#include "absl/status/status.h"
#include "launcher/http/http_exchange.h"

namespace lockstep {

// Used by the exchanges' thread alone.
class SideThread {
 public:
  static constexpr size_t kMaxWaiting = 256;

  // Does the work in its turn, in order. The coroutine's frame, to which the work may refer, waits
  // for it. CANCELLED, and nothing is done: the exchange's client has gone.
  Awaitable<absl::Status> Run(HttpExchange& exchange, std::function<void()> work);
  // The same of what begins; RESOURCE_EXHAUSTED: kMaxWaiting wait already.
  Awaitable<absl::Status> RunIfSoon(HttpExchange& exchange, std::function<void()> work);

 private:
  void Leave();

  bool is_busy_ = false;
  std::deque<boost::asio::steady_timer*> waiting_;  // on coroutines' frames; cancelled when due
  boost::asio::thread_pool thread_{1};
};

}  // namespace lockstep
