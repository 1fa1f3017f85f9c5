// One connection of an HttpServer: requests one after the other, each answered by the handler.
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <cstdint>

#include "launcher/http/http_exchange.h"
#include "launcher/http/http_server.h"

namespace lockstep {

using PlainStream = boost::beast::tcp_stream;
using TlsStream = boost::beast::ssl_stream<PlainStream>;

// What connections share. One thread.
struct HttpServerState {
  HttpLimits limits;
  HttpHandler handler;
  HttpReply (*refusal)(int status, absl::string_view why);
  int64_t bodies_bytes = 0;  // held, or promised by headers that were read
  bool is_draining = false;
};

// What the server may do to a connection.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual bool is_idle() const = 0;  // between requests
  virtual void Close() = 0;          // whatever waits for it goes on with an error
};

// Stream: PlainStream or TlsStream.
template <typename Stream>
class HttpSession final : public HttpConnection, private HttpExchange {
 public:
  HttpSession(Stream stream, HttpServerState& state) : stream_(std::move(stream)), state_(state) {}

  // Until the connection ends.
  Awaitable<void> Run();

  bool is_idle() const override { return is_idle_; }
  void Close() override {
    boost::system::error_code ignored;
    Socket().socket().close(ignored);
  }

 private:
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // A part of the memory for bodies.
  class BodyBudget {
   public:
    explicit BodyBudget(HttpServerState& state) : state_(state) {}
    ~BodyBudget() { state_.bodies_bytes -= bytes_; }
    BodyBudget(const BodyBudget&) = delete;
    BodyBudget& operator=(const BodyBudget&) = delete;
    // Instead of what it has; false where there is not as much.
    bool Take(int64_t bytes) {
      const int64_t all = state_.bodies_bytes - bytes_ + bytes;
      if (all > state_.limits.max_bodies_bytes) return false;
      state_.bodies_bytes = all;
      bytes_ = bytes;
      return true;
    }

   private:
    HttpServerState& state_;
    int64_t bytes_ = 0;
  };

  boost::beast::tcp_stream& Socket() { return boost::beast::get_lowest_layer(stream_); }
  void ExpireAfter(absl::Duration duration) {
    Socket().expires_after(absl::ToChronoNanoseconds(duration));
  }

  Awaitable<bool> Handshake();
  Awaitable<bool> ServeOne();
  Awaitable<bool> ReadBody(Parser& parser, BodyBudget& budget);
  Awaitable<void> Refuse(const ErrorCode& error);
  Awaitable<void> Shutdown();

  const HttpRequest& request() const override { return request_; }
  Awaitable<void> Reply(HttpReply reply) override;
  Awaitable<bool> BeginStream(absl::string_view content_type) override;
  Awaitable<bool> Write(absl::string_view piece) override;
  Awaitable<void> EndStream() override;
  bool PeerHasGone() override;

  Stream stream_;
  HttpServerState& state_;
  boost::beast::flat_buffer buffer_;
  std::string client_;
  HttpRequest request_;
  unsigned version_ = 11;
  bool keep_alive_ = false;  // after this answer
  bool is_head_ = false;     // answers have no body
  bool is_idle_ = false;
};

}  // namespace lockstep
