// One HTTP request and the ways to answer it.
//
// Never co_await in a condition: GCC 12 lays the frame out wrongly where a coroutine has no
// variables (gcc.gnu.org/PR106188).
//
// Everything runs on the thread of the server's io_context. An answer is either one Reply, or
// BeginStream, any number of Writes and EndStream. Those two say whether the client still takes it;
// after a false nothing more needs to be said.
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp, which uses std::exchange

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

template <typename T>
using Awaitable = boost::asio::awaitable<T>;

struct HttpRequest {
  std::string client;         // "192.0.2.7:51234", "[2001:db8::7]:51234"
  std::string method;         // "POST"
  std::string path;           // without query
  std::string content_type;   // empty = none
  std::string authorization;  // the header's value; empty = none
  std::string body;           // see HttpExchange::ReadBody
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::string allow;            // methods, with 405
  int retry_after_seconds = 0;  // 0 = not said
};

// The text as a line.
HttpReply PlainReply(int status, absl::string_view text);

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // Until then a long body is not in the request: who may not send it is told before. What it
  // returns is the answer to a body that did not come whole. Once at most. A connection whose
  // body was not asked for ends with the answer.
  virtual Awaitable<std::optional<HttpReply>> ReadBody() = 0;
  virtual Awaitable<void> Reply(HttpReply reply) = 0;
  // Status 200, a body of unknown length (chunked; for HTTP/1.0 up to the end of the connection).
  virtual Awaitable<bool> BeginStream(absl::string_view content_type) = 0;
  virtual Awaitable<bool> Write(absl::string_view piece) = 0;
  virtual Awaitable<void> EndStream() = 0;
  // Asks the socket: the client has closed its side, and nobody reads an answer any more.
  virtual bool PeerHasGone() = 0;
};

// Answers exactly once. The exchange lives until it returns.
using HttpHandler = std::function<Awaitable<void>(HttpExchange&)>;

}  // namespace lockstep
