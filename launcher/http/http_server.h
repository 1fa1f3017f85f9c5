// An HTTP/1.1 server for strangers, by Boost.Beast: in clear or with TLS, with a limit to all that
// a client can take: sizes of header and body, time for each, connections, and memory for all
// bodies and answers together.
//
// Belongs to one io_context and the one thread that runs it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/cli/values.h"
#include "launcher/http/http_exchange.h"
#include "runtime/security/tls.h"

namespace lockstep {

struct HttpLimits {
  // With more, those end that have been between requests the longest, else those the rest
  // of whose requests is awaited the longest; others wait in the listen queue.
  int max_connections = 1024;
  uint32_t max_header_bytes = 16 << 10;
  int64_t max_body_bytes = 8 << 20;
  // Of all requests that are being read or answered, and of all answers that are being sent; short
  // ones do not count.
  int64_t max_bodies_bytes = int64_t{256} << 20;
  int64_t max_answers_bytes = int64_t{256} << 20;
  int64_t short_bytes = 64 << 10;  // bodies of which are there before the handler is called
  absl::Duration header_timeout = absl::Seconds(30);
  absl::Duration body_timeout = absl::Seconds(60);
  absl::Duration body_timeout_when_full = absl::Seconds(3);
  absl::Duration write_timeout = absl::Seconds(60);  // for each piece of an answer
  absl::Duration idle_timeout = absl::Seconds(75);   // between requests
};

struct HttpServerOptions {
  HostPort listen;                 // port 0 = any free one
  std::optional<TlsIdentity> tls;  // none = in clear; with an authority clients must show a
                                   // certificate that it signed
  HttpLimits limits = {};
  // What a client is answered whose request the handler does not see: it is not HTTP, or too long.
  HttpReply (*refusal)(int status, absl::string_view why) = PlainReply;
  // Where it listens on loopback without TLS, who asks for another host's name is refused: a page
  // of that name in a browser here, which was told that the name is this machine's ("DNS
  // rebinding"). Addresses and names without a dot are no such names; "*": none is.
  std::vector<std::string> allowed_hosts = {};
  // Pages whose scripts may ask and read answers (WebOrigins).
  std::vector<std::string> allowed_origins = {};
};

class HttpServer {
 public:
  // Listens and accepts. INVALID_ARGUMENT (an address that does not resolve, a key that OpenSSL
  // refuses), UNAVAILABLE (in use).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(boost::asio::io_context& io,
                                                           const HttpServerOptions& options,
                                                           HttpHandler handler);
  // Not before num_connections() is 0 or the io_context has stopped for good.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "http://127.0.0.1:8000"
  const std::string& url() const;
  // No new connections; those between requests are closed, the others after their answer.
  void Drain();
  // Closes all connections: clients of running answers lose them.
  void Close();
  int num_connections() const;

 private:
  class Acceptor;
  explicit HttpServer(std::shared_ptr<Acceptor> acceptor);
  std::shared_ptr<Acceptor> acceptor_;  // shared with its own coroutine and with connections
};

}  // namespace lockstep
