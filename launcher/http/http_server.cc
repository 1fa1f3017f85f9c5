#include "launcher/http/http_server.h"

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "launcher/http/http_session.h"

namespace lockstep {
namespace {

using boost::asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// When there are no descriptors left, or too many connections.
constexpr std::chrono::milliseconds kPauseAfterError{100};
constexpr std::chrono::milliseconds kTimeToEnd{1};

absl::StatusOr<std::unique_ptr<boost::asio::ssl::context>> MakeTls(const TlsIdentity& identity) {
  namespace ssl = boost::asio::ssl;
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  ErrorCode error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 |
                       ssl::context::no_tlsv1_1);
  context->use_certificate_chain(boost::asio::buffer(identity.certificate), error);
  if (!error) {
    context->use_private_key(boost::asio::buffer(identity.key), ssl::context::pem, error);
  }
  if (!error && !identity.authority.empty()) {
    context->add_certificate_authority(boost::asio::buffer(identity.authority), error);
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
  }
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("OpenSSL refuses the key: ", error.message()));
  }
  // Without a name OpenSSL refuses whoever shows a certificate and resumes a session.
  constexpr unsigned char kSessions[] = "lockstep";
  LS_CHECK_EQ(
      SSL_CTX_set_session_id_context(context->native_handle(), kSessions, sizeof(kSessions) - 1),
      1);
  return context;
}

absl::StatusOr<tcp::endpoint> Resolve(boost::asio::io_context& io, const HostPort& address) {
  ErrorCode error;
  const auto found =
      tcp::resolver(io).resolve(address.host, std::to_string(address.port),
                                tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve ", address.host, ": ", error.message()));
  }
  return found.begin()->endpoint();
}

}  // namespace

class HttpServer::Acceptor : public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(boost::asio::io_context& io, const HttpServerOptions& options, HttpHandler handler)
      : acceptor_(io), pause_(io), max_connections_(options.limits.max_connections) {
    state_.limits = options.limits;
    state_.handler = std::move(handler);
    state_.refusal = options.refusal;
  }

  absl::Status Listen(const HttpServerOptions& options, const tcp::endpoint& endpoint) {
    if (options.tls) {
      ASSIGN_OR_RETURN(tls_, MakeTls(*options.tls));
    }
    ErrorCode error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(boost::asio::socket_base::max_listen_connections, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options.listen.ToString(), ": ", error.message()));
    }
    HostPort bound = options.listen;
    bound.port = acceptor_.local_endpoint().port();
    // With TLS a browser wants a certificate of the name.
    if (endpoint.address().is_loopback() && !tls_) state_.hosts.emplace(options.allowed_hosts);
    state_.origins = WebOrigins(options.allowed_origins);
    url_ = absl::StrCat(tls_ ? "https://" : "http://", bound.ToString());
    return absl::OkStatus();
  }

  void Start() { Spawn(Accept(shared_from_this())); }

  const std::string& url() const { return url_; }
  int num_connections() const { return static_cast<int>(connections_.size()); }

  void Drain() {
    state_.is_draining = true;
    ErrorCode ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    for (HttpConnection* connection : connections_) {
      if (connection->idle_since()) connection->Close();
    }
  }

  void Close() {
    Drain();
    for (HttpConnection* connection : connections_) connection->Close();
  }

 private:
  void Spawn(Awaitable<void> coroutine) {
    boost::asio::co_spawn(acceptor_.get_executor(), std::move(coroutine),
                          [](const std::exception_ptr& error) {
                            if (error) std::rethrow_exception(error);  // out of io_context::run
                          });
  }

  static Awaitable<void> Accept(std::shared_ptr<Acceptor> self) {
    while (!self->state_.is_draining) {
      ErrorCode error;
      const auto told = [&error] {
        return boost::asio::redirect_error(boost::asio::use_awaitable, error);
      };
      const bool is_full = self->num_connections() >= self->max_connections_;
      if (is_full) {
        co_await self->acceptor_.async_wait(tcp::acceptor::wait_read, told());
      } else {
        tcp::socket socket = co_await self->acceptor_.async_accept(told());
        if (!error) self->Serve(std::move(socket));
      }
      if ((!error && !is_full) || self->state_.is_draining) continue;
      const bool makes_room = !error && self->CloseOneThatWaits();
      self->pause_.expires_after(makes_room ? kTimeToEnd : kPauseAfterError);
      co_await self->pause_.async_wait(told());
    }
  }

  // The one that does nothing for the longest time; else who makes us wait for the rest of a
  // request for long.
  bool CloseOneThatWaits() {
    HttpConnection* const idle = Longest(&HttpConnection::idle_since);
    HttpConnection* const reading = Longest(&HttpConnection::reading_since);
    HttpConnection* const first = idle != nullptr ? idle : reading;
    if (first == nullptr) return false;
    const absl::Time latest = SteadyNow() - state_.limits.body_timeout_when_full;
    if (idle == nullptr && reading->reading_since() > latest) return false;
    first->Close();
    return true;
  }

  HttpConnection* Longest(std::optional<absl::Time> (HttpConnection::*since)() const) const {
    HttpConnection* first = nullptr;
    for (HttpConnection* connection : connections_) {
      const std::optional<absl::Time> time = (connection->*since)();
      if (time && (first == nullptr || *time < *(first->*since)())) first = connection;
    }
    return first;
  }

  void Serve(tcp::socket socket) {
    ErrorCode ignored;
    socket.set_option(tcp::no_delay(true), ignored);  // tokens are small and due at once
    PlainStream plain(std::move(socket));
    if (tls_) {
      Run(std::make_unique<HttpSession<TlsStream>>(TlsStream(std::move(plain), *tls_), state_));
    } else {
      Run(std::make_unique<HttpSession<PlainStream>>(std::move(plain), state_));
    }
  }

  // Counted at once: the next one is accepted before this one's coroutine begins.
  template <typename Session>
  void Run(std::unique_ptr<Session> session) {
    connections_.insert(session.get());
    Spawn(RunToEnd(shared_from_this(), std::move(session)));
  }

  template <typename Session>
  static Awaitable<void> RunToEnd(std::shared_ptr<Acceptor> self,
                                  std::unique_ptr<Session> session) {
    // Also when it throws.
    const absl::Cleanup gone = [&] { self->connections_.erase(session.get()); };
    co_await session->Run();
  }

  tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  const int max_connections_;
  std::unique_ptr<boost::asio::ssl::context> tls_;
  std::string url_;
  HttpServerState state_;
  std::set<HttpConnection*> connections_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(boost::asio::io_context& io,
                                                              const HttpServerOptions& options,
                                                              HttpHandler handler) {
  ASSIGN_OR_RETURN(const tcp::endpoint endpoint, Resolve(io, options.listen));
  auto acceptor = std::make_shared<Acceptor>(io, options, std::move(handler));
  RETURN_IF_ERROR(acceptor->Listen(options, endpoint));
  acceptor->Start();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(acceptor)));
}

HttpServer::HttpServer(std::shared_ptr<Acceptor> acceptor) : acceptor_(std::move(acceptor)) {}
HttpServer::~HttpServer() = default;
const std::string& HttpServer::url() const { return acceptor_->url(); }
void HttpServer::Drain() { acceptor_->Drain(); }
void HttpServer::Close() { acceptor_->Close(); }
int HttpServer::num_connections() const { return acceptor_->num_connections(); }

}  // namespace lockstep
