// One connection of an HttpServer: requests one after the other, each answered by the handler.
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <cstdint>
#include <optional>

#include "kernels/base/steady_clock.h"
#include "launcher/http/host_names.h"
#include "launcher/http/http_exchange.h"
#include "launcher/http/http_server.h"
#include "launcher/http/web_origins.h"

namespace lockstep {

using PlainStream = boost::beast::tcp_stream;
using TlsStream = boost::beast::ssl_stream<PlainStream>;

// What connections share. One thread.
struct HttpServerState {
  HttpLimits limits;
  HttpHandler handler;
  HttpReply (*refusal)(int status, absl::string_view why);
  std::optional<HostNames> hosts;  // that may be asked for; none = all
  WebOrigins origins;              // of pages that may ask
  int64_t bodies_bytes = 0;        // held
  int64_t answers_bytes = 0;
  bool is_draining = false;
};

// What the server may do to a connection.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  // Since when it has been between requests; none = it is not.
  virtual std::optional<absl::Time> idle_since() const = 0;
  // And since when the rest of a request, of which some has come; none = it is not awaited.
  virtual std::optional<absl::Time> reading_since() const = 0;
  virtual void Close() = 0;  // whatever waits for it goes on with an error
};

// A part of the memory for bodies, or for answers.
class MemoryShare {
 public:
  MemoryShare(int64_t& all, int64_t most) : all_(all), most_(most) {}
  ~MemoryShare() { all_ -= bytes_; }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;
  // Instead of what it has; false where there is not as much.
  bool Take(int64_t bytes) {
    const int64_t all = all_ - bytes_ + bytes;
    if (all > most_) return false;
    all_ = all;
    bytes_ = bytes;
    return true;
  }

 private:
  int64_t& all_;
  const int64_t most_;
  int64_t bytes_ = 0;
};

// Stream: PlainStream or TlsStream.
template <typename Stream>
class HttpSession final : public HttpConnection, private HttpExchange {
 public:
  HttpSession(Stream stream, HttpServerState& state) : stream_(std::move(stream)), state_(state) {}

  // Until the connection ends.
  Awaitable<void> Run();

  std::optional<absl::Time> idle_since() const override { return idle_since_; }
  std::optional<absl::Time> reading_since() const override { return reading_since_; }
  void Close() override {
    boost::system::error_code ignored;
    Socket().socket().close(ignored);
  }

 private:
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  boost::beast::tcp_stream& Socket() { return boost::beast::get_lowest_layer(stream_); }
  void ExpireAfter(absl::Duration duration) {
    Socket().expires_after(absl::ToChronoNanoseconds(duration));
  }

  Awaitable<bool> Handshake();
  Awaitable<bool> ServeOne();
  std::optional<HttpReply> FlawOf() const;
  bool IsPreflight() const;
  Awaitable<void> ReplyToPreflight();
  bool HasShortBody() const;
  std::optional<HttpReply> RefusalOf(const ErrorCode& error) const;
  Awaitable<void> Shutdown();

  const HttpRequest& request() const override { return request_; }
  Awaitable<std::optional<HttpReply>> ReadBody() override;
  Awaitable<void> Reply(HttpReply reply) override;
  Awaitable<bool> BeginStream(absl::string_view content_type) override;
  Awaitable<bool> Write(absl::string_view piece) override;
  Awaitable<void> EndStream() override;
  bool PeerHasGone() override;

  Stream stream_;
  HttpServerState& state_;
  // Holds a header, or what stands around a chunk, to its end.
  boost::beast::flat_buffer buffer_{64 << 10};
  std::string client_;
  std::optional<Parser> parser_;
  MemoryShare body_share_{state_.bodies_bytes, state_.limits.max_bodies_bytes};
  HttpRequest request_;
  unsigned version_ = 11;
  bool keep_alive_ = false;  // after this answer
  bool is_head_ = false;     // answers have no body
  std::string page_;         // WebOrigins::Permitted
  std::optional<absl::Time> idle_since_ = SteadyNow();
  std::optional<absl::Time> reading_since_;
};

}  // namespace lockstep
