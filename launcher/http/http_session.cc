#include "launcher/http/http_session.h"

#include <poll.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <string>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lockstep {
namespace {

namespace http = boost::beast::http;

template <typename Stream>
constexpr bool kIsTls = std::is_same_v<Stream, TlsStream>;

std::string PeerOf(const boost::asio::ip::tcp::socket& socket) {
  boost::system::error_code error;
  const auto peer = socket.remote_endpoint(error);
  if (error) return "";
  const std::string host = peer.address().to_string();
  return absl::StrCat(peer.address().is_v6() ? absl::StrCat("[", host, "]") : host, ":",
                      peer.port());
}

// Errors go where they are told, nothing is thrown.
auto Told(boost::system::error_code& error) {
  return boost::asio::redirect_error(boost::asio::use_awaitable, error);
}

// "http://host/path" is "/path": RFC 9112, 3.2.2.
absl::string_view WithoutAuthority(absl::string_view target) {
  const size_t scheme = target.find("://");
  if (absl::StartsWith(target, "/") || scheme == absl::string_view::npos) return target;
  const size_t path = target.find('/', scheme + 3);
  return path == absl::string_view::npos ? "/" : target.substr(path);
}

// Who has a clock must tell it: RFC 9110, 6.6.1.
void SetDate(http::fields& header) {
  header.set(http::field::date,
             absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()));
}

// Of an answer that a page's script may read; page: WebOrigins::Permitted.
void SetPage(const std::string& page, http::fields& header) {
  if (page.empty()) return;
  header.set(http::field::access_control_allow_origin, page);
  header.set(http::field::access_control_expose_headers, "Retry-After");
  if (page != "*") header.set(http::field::vary, "Origin");
}

}  // namespace

template <typename Stream>
Awaitable<void> HttpSession<Stream>::Run() {
  client_ = PeerOf(Socket().socket());
  bool goes_on = co_await Handshake();
  if (!goes_on) co_return;
  while (goes_on) goes_on = co_await ServeOne();
  co_await Shutdown();
}

template <typename Stream>
Awaitable<bool> HttpSession<Stream>::Handshake() {
  if constexpr (kIsTls<Stream>) {
    ErrorCode error;
    ExpireAfter(state_.limits.header_timeout);
    co_await stream_.async_handshake(boost::asio::ssl::stream_base::server, Told(error));
    co_return !error;
  }
  co_return true;
}

// False when there is no next request.
template <typename Stream>
Awaitable<bool> HttpSession<Stream>::ServeOne() {
  parser_.emplace();
  parser_->header_limit(state_.limits.max_header_bytes);
  parser_->body_limit(static_cast<uint64_t>(state_.limits.max_body_bytes));
  ErrorCode error;
  (buffer_.size() == 0 ? idle_since_ : reading_since_) = SteadyNow();
  ExpireAfter(keep_alive_ ? state_.limits.idle_timeout : state_.limits.header_timeout);
  co_await http::async_read_header(stream_, buffer_, *parser_, Told(error));
  idle_since_.reset();
  reading_since_.reset();
  const auto& header = parser_->get();
  version_ = error ? 11 : header.version();
  is_head_ = !error && header.method() == http::verb::head;
  keep_alive_ = false;
  std::optional<HttpReply> refusal = error ? RefusalOf(error) : FlawOf();
  if (!error && !refusal) {
    keep_alive_ = header.keep_alive() && !state_.is_draining;
    const absl::string_view target =
        WithoutAuthority({header.target().data(), header.target().size()});
    request_ = {.client = client_,
                .method = std::string(header.method_string()),
                .path = std::string(target.substr(0, target.find('?'))),
                .content_type = std::string(header[http::field::content_type]),
                .authorization = std::string(header[http::field::authorization]),
                .body = {}};
    const auto origin = header[http::field::origin];
    page_ = state_.origins.Permitted({origin.data(), origin.size()});
    if (HasShortBody()) refusal = co_await ReadBody();
  }
  if (refusal) {
    keep_alive_ = false;
    co_await Reply(*std::move(refusal));
  } else if (!error && IsPreflight()) {
    co_await ReplyToPreflight();
  } else if (!error) {
    co_await state_.handler(*this);
  }
  request_ = {};
  page_.clear();
  body_share_.Take(0);
  co_return keep_alive_ && !state_.is_draining && Socket().socket().is_open();
}

// Why a request's end, or whom it is for, is a matter of opinion, of which proxies may have another
// (RFC 9112, 3.2 and 6.3), or why it is not for this server.
template <typename Stream>
std::optional<HttpReply> HttpSession<Stream>::FlawOf() const {
  const auto& header = parser_->get();
  const auto not_http = [this](absl::string_view flaw) {
    return state_.refusal(400, absl::StrCat("not HTTP: ", flaw));
  };
  const absl::string_view coding(header[http::field::content_encoding].data(),
                                 header[http::field::content_encoding].size());
  if (!coding.empty() && !absl::EqualsIgnoreCase(coding, "identity")) {
    return state_.refusal(415, absl::StrCat("Content-Encoding ", Excerpt(coding, 60),
                                            ": bodies must not be compressed"));
  }
  if (header.count(http::field::transfer_encoding) > 0) {
    if (!parser_->chunked()) {
      return not_http("Transfer-Encoding other than chunked");  // beside a length: Beast
    }
    if (header.version() < 11) return not_http("Transfer-Encoding in HTTP/1.0");
  }
  if (header.version() == 11 && header.count(http::field::host) != 1) {
    return not_http("no Host, or several");
  }
  const std::string host(header[http::field::host]);
  if (!state_.hosts || state_.hosts->Has(host)) return std::nullopt;
  return state_.refusal(403,
                        absl::StrCat("this server listens for its own machine alone, not as \"",
                                     Excerpt(host, 60), "\" (--allowed-host)"));
}

// A browser's question whether a page's script may ask what it is about to.
template <typename Stream>
bool HttpSession<Stream>::IsPreflight() const {
  const auto& header = parser_->get();
  return !page_.empty() && header.method() == http::verb::options &&
         header.count(http::field::access_control_request_method) > 0;
}

template <typename Stream>
Awaitable<void> HttpSession<Stream>::ReplyToPreflight() {
  const auto& asked = parser_->get();
  http::response<http::empty_body> response{http::status::no_content, version_};
  SetDate(response);
  SetPage(page_, response);
  response.set(http::field::access_control_allow_methods, "GET, HEAD, POST");
  response.set(http::field::access_control_allow_headers,
               asked[http::field::access_control_request_headers]);
  response.set(http::field::access_control_max_age, "600");
  // A page of the internet's that asks a server of a private network (WICG, "Private Network
  // Access").
  if (asked["Access-Control-Request-Private-Network"] == "true") {
    response.set("Access-Control-Allow-Private-Network", "true");
  }
  if (!parser_->is_done()) keep_alive_ = false;
  response.keep_alive(keep_alive_);
  ErrorCode error;
  ExpireAfter(state_.limits.write_timeout);
  co_await http::async_write(stream_, response, Told(error));
  if (error) keep_alive_ = false;
}

// What is short, and whoever only promises much, takes nothing from others.
template <typename Stream>
bool HttpSession<Stream>::HasShortBody() const {
  const auto length = parser_->content_length();
  return parser_->is_done() ||
         (length && *length <= static_cast<uint64_t>(state_.limits.short_bytes));
}

template <typename Stream>
Awaitable<std::optional<HttpReply>> HttpSession<Stream>::ReadBody() {
  ErrorCode error;
  std::optional<HttpReply> refusal;
  if (parser_->is_done()) {
    // Unless it is there already.
    if (request_.body.empty()) request_.body = std::move(parser_->get().body());
    co_return refusal;
  }
  reading_since_ = SteadyNow();
  ExpireAfter(state_.limits.body_timeout);
  if (boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_on{http::status::continue_, version_};
    co_await http::async_write(stream_, go_on, Told(error));
  }
  while (!error && !refusal && !parser_->is_done()) {
    co_await http::async_read_some(stream_, buffer_, *parser_, Told(error));
    const auto size = static_cast<int64_t>(parser_->get().body().size());
    if (!body_share_.Take(size <= state_.limits.short_bytes ? 0 : size)) {
      refusal = state_.refusal(503, "too many requests are being read");
      refusal->retry_after_seconds = 1;
    }
  }
  reading_since_.reset();
  if (error) refusal = RefusalOf(error).value_or(state_.refusal(408, "the body did not come"));
  if (!refusal) request_.body = std::move(parser_->get().body());
  co_return refusal;
}

// What could not be read as HTTP is told so; whoever has gone or was too slow is not.
template <typename Stream>
std::optional<HttpReply> HttpSession<Stream>::RefusalOf(const ErrorCode& error) const {
  if (error == http::error::header_limit) {
    return state_.refusal(
        431, absl::StrCat("the header is longer than ", state_.limits.max_header_bytes, " bytes"));
  }
  if (error == http::error::body_limit) {
    return state_.refusal(
        413, absl::StrCat("the body is longer than ", state_.limits.max_body_bytes, " bytes"));
  }
  if (error == http::error::buffer_overflow) {
    return state_.refusal(431, absl::StrCat("what stands around the body's chunks is longer than ",
                                            buffer_.max_size(), " bytes"));
  }
  const bool is_about_http =
      error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message;
  if (!is_about_http) return std::nullopt;
  return state_.refusal(400, absl::StrCat("not HTTP: ", error.message()));
}

template <typename Stream>
Awaitable<void> HttpSession<Stream>::Reply(HttpReply reply) {
  MemoryShare share(state_.answers_bytes, state_.limits.max_answers_bytes);
  const auto size = static_cast<int64_t>(reply.body.size());
  if (size > state_.limits.short_bytes && !share.Take(size)) {
    reply = state_.refusal(503, "too many answers are being sent");
    reply.retry_after_seconds = 1;
  }
  if (!parser_->is_done()) keep_alive_ = false;  // what comes next is the body
  http::response<http::string_body> response{static_cast<http::status>(reply.status), version_};
  SetDate(response);
  SetPage(page_, response);
  response.set(http::field::content_type, reply.content_type);
  if (!reply.allow.empty()) response.set(http::field::allow, reply.allow);
  if (reply.retry_after_seconds > 0) {
    response.set(http::field::retry_after, std::to_string(reply.retry_after_seconds));
  }
  if (reply.status == 401) response.set(http::field::www_authenticate, "Bearer");
  response.body() = std::move(reply.body);
  response.keep_alive(keep_alive_);
  response.prepare_payload();
  ErrorCode error;
  ExpireAfter(state_.limits.write_timeout);
  http::serializer<false, http::string_body> serializer(response);
  if (is_head_) {
    co_await http::async_write_header(stream_, serializer, Told(error));
  } else {
    co_await http::async_write(stream_, serializer, Told(error));
  }
  if (error) keep_alive_ = false;
}

template <typename Stream>
Awaitable<bool> HttpSession<Stream>::BeginStream(absl::string_view content_type) {
  http::response<http::empty_body> header{http::status::ok, version_};
  SetDate(header);
  SetPage(page_, header);
  header.set(http::field::content_type,
             boost::beast::string_view(content_type.data(), content_type.size()));
  header.set(http::field::cache_control, "no-cache");
  header.set("X-Accel-Buffering", "no");  // nginx: pass on what comes when it comes
  if (version_ == 11) {
    header.chunked(true);
  } else {
    keep_alive_ = false;
  }
  header.keep_alive(keep_alive_);
  ErrorCode error;
  ExpireAfter(state_.limits.write_timeout);
  http::serializer<false, http::empty_body> serializer(header);
  co_await http::async_write_header(stream_, serializer, Told(error));
  co_return !error;
}

template <typename Stream>
Awaitable<bool> HttpSession<Stream>::Write(absl::string_view piece) {
  if (piece.empty()) co_return true;
  ErrorCode error;
  ExpireAfter(state_.limits.write_timeout);
  const auto data = boost::asio::buffer(piece.data(), piece.size());
  if (version_ == 11) {
    co_await boost::asio::async_write(stream_, http::make_chunk(data), Told(error));
  } else {
    co_await boost::asio::async_write(stream_, data, Told(error));
  }
  if (error) keep_alive_ = false;
  co_return !error;
}

template <typename Stream>
Awaitable<void> HttpSession<Stream>::EndStream() {
  if (version_ != 11) co_return;
  ErrorCode error;
  ExpireAfter(state_.limits.write_timeout);
  co_await boost::asio::async_write(stream_, http::make_chunk_last(), Told(error));
  if (error) keep_alive_ = false;
}

// Also where TLS has said goodbye, or a next request waits: those bytes lie before the end, so that
// reading would not show it.
template <typename Stream>
bool HttpSession<Stream>::PeerHasGone() {
  auto& socket = Socket().socket();
  if (!socket.is_open()) return true;
  pollfd polled{socket.native_handle(), POLLRDHUP, 0};
  return ::poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

// So that the client reads the last answer to its end: closing a socket that holds unread bytes
// would reset the connection, and take it away.
template <typename Stream>
Awaitable<void> HttpSession<Stream>::Shutdown() {
  if (!Socket().socket().is_open()) co_return;
  ErrorCode error;
  ExpireAfter(absl::Seconds(2));
  if constexpr (kIsTls<Stream>) {
    co_await stream_.async_shutdown(Told(error));
  }
  Socket().socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, error);
  char rest[4096];
  for (int i = 0; i < 1024 && !error; ++i) {
    co_await Socket().async_read_some(boost::asio::buffer(rest), Told(error));
  }
}

template class HttpSession<PlainStream>;
template class HttpSession<TlsStream>;

}  // namespace lockstep
