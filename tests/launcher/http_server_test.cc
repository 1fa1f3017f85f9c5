#include "launcher/http/http_server.h"

#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/http_fixture.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawClient;
using testing::RunningHttpServer;
using ::testing::StartsWith;

// Says what was asked: "METHOD PATH BODY".
Awaitable<void> Repeat(HttpExchange& exchange) {
  const HttpRequest& request = exchange.request();
  std::optional<HttpReply> refusal = co_await exchange.ReadBody();
  if (refusal) {
    co_await exchange.Reply(*std::move(refusal));
    co_return;
  }
  HttpReply reply;
  reply.content_type = "text/plain";
  reply.body = request.method + " " + request.path + " " + request.body + ".";
  co_await exchange.Reply(std::move(reply));
}

Awaitable<void> StreamTwoPieces(HttpExchange& exchange) {
  co_await exchange.BeginStream("text/plain");
  co_await exchange.Write("one");
  co_await exchange.Write("two");
  co_await exchange.EndStream();
}

std::string Ask(RunningHttpServer& server, const std::string& bytes) {
  RawClient client(server.port());
  client.Send(bytes);
  return client.ReadAll();
}

std::string Get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n";
}

constexpr char kLast[] = "Connection: close\r\n";

TEST(HttpServerTest, AnswersRequestsOfOneConnectionInTurn) {
  RunningHttpServer server({}, &Repeat);
  RawClient client(server.port());
  client.Send(Get("/a"));
  EXPECT_THAT(client.ReadUntil("GET /a ."), StartsWith("HTTP/1.1 200 OK\r\n"));
  client.Send(Get("/b?query") + Get("/c", kLast));  // both at once
  EXPECT_THAT(client.ReadUntil("GET /b ."), HasSubstr("200 OK"));
  EXPECT_THAT(client.ReadAll(), HasSubstr("GET /c ."));
}

// "Date: Fri, 27 Nov 2026 14:40:02 GMT": RFC 9110, 5.6.7.
TEST(HttpServerTest, EveryAnswerTellsItsDate) {
  RunningHttpServer whole({}, &Repeat);
  RunningHttpServer streamed({}, &StreamTwoPieces);
  for (RunningHttpServer* server : {&whole, &streamed}) {
    const std::string answer = Ask(*server, Get("/", kLast));
    const size_t at = answer.find("\r\nDate: ");
    ASSERT_NE(at, std::string::npos) << answer;
    absl::Time date;
    std::string error;
    EXPECT_TRUE(
        absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", answer.substr(at + 8, 29), &date, &error))
        << error;
    EXPECT_LT(absl::AbsDuration(absl::Now() - date), absl::Hours(1));
  }
}

TEST(HttpServerTest, OldClientsGetAnswersThatEndWithTheConnection) {
  RunningHttpServer server({}, &StreamTwoPieces);
  EXPECT_THAT(Ask(server, "GET / HTTP/1.0\r\n\r\n"), ::testing::EndsWith("\r\n\r\nonetwo"));
  EXPECT_THAT(Ask(server, Get("/", kLast)),
              ::testing::EndsWith("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"));
}

TEST(HttpServerTest, AHeadHasNoBody) {
  RunningHttpServer server({}, &Repeat);
  const std::string answer =
      Ask(server, "HEAD /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 9"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n"));
}

TEST(HttpServerTest, BodiesComeWholeInPiecesOrWhenTheyAreAskedFor) {
  RunningHttpServer server({}, &Repeat);
  EXPECT_THAT(Ask(server, testing::PostJson("/a", "body")), HasSubstr("POST /a body."));
  EXPECT_THAT(Ask(server,
                  "POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"),
              HasSubstr("POST /a body."));
  RawClient client(server.port());
  client.Send(
      "POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));
  client.Send("body");
  EXPECT_THAT(client.ReadAll(), HasSubstr("POST /a body."));
}

TEST(HttpServerTest, WhatIsTooLongOrNoHttpIsToldSo) {
  HttpServerOptions options;
  options.limits.max_header_bytes = 1000;
  options.limits.max_body_bytes = 10;
  RunningHttpServer server(options, &Repeat);
  EXPECT_THAT(Ask(server, Get("/", "X: " + std::string(2000, 'x') + "\r\n")),
              HasSubstr("431 Request Header Fields Too Large"));
  EXPECT_THAT(Ask(server, testing::PostJson("/", std::string(11, 'x'))),
              HasSubstr("413 Payload Too Large"));
  EXPECT_THAT(Ask(server,
                  "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "b\r\nxxxxxxxxxxx\r\n0\r\n\r\n"),
              HasSubstr("413 Payload Too Large"));
  EXPECT_THAT(Ask(server, "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"),
              HasSubstr("400 Bad Request"));
  EXPECT_THAT(Ask(server, "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
              HasSubstr("400 Bad Request"));
  for (const char* rubbish : {"rubbish\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n",
                              "GET / HTTP/9.9\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
    EXPECT_THAT(Ask(server, rubbish), HasSubstr("400 Bad Request")) << rubbish;
  }
  EXPECT_THAT(Ask(server, testing::PostJson("/", "fits")), HasSubstr("200 OK"));
}

// What a proxy in front may read otherwise.
TEST(HttpServerTest, RequestsWhoseEndOrHostIsDoubtfulAreRefusedAndNothingBehindThemIsRead) {
  RunningHttpServer server({}, &Repeat);
  const std::string hidden = "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const char* headers :
       {"Host: x\r\nTransfer-Encoding: identity\r\n", "Host: x\r\nTransfer-Encoding: xchunked\r\n",
        "Host: x\r\nTransfer-Encoding: chunked, identity\r\n",
        "Host: x\r\nTransfer-Encoding: xchunked\r\nContent-Length: 3\r\n",
        "Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", "",
        "Host: x\r\nHost: y\r\n"}) {
    const std::string answer =
        Ask(server, absl::StrCat("POST /a HTTP/1.1\r\n", headers, "\r\n", hidden));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 ")) << headers;
    EXPECT_THAT(answer, Not(HasSubstr("hidden"))) << headers;
  }
  EXPECT_THAT(Ask(server, "POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
              HasSubstr(" 400 "));
  EXPECT_THAT(
      Ask(server, "GET http://x:1/b?query HTTP/1.1\r\nHost: x\r\n" + std::string(kLast) + "\r\n"),
      HasSubstr("GET /b ."));
}

// What stands around the bytes of a body is no body.
TEST(HttpServerTest, ExtensionsOfChunksAndTrailersHaveALimit) {
  RunningHttpServer server({}, &Repeat);
  const std::string header =
      absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\n", kLast, "Transfer-Encoding: chunked\r\n\r\n");
  std::string trailers = "0\r\n";
  while (trailers.size() < 80'000) trailers += "X: a\r\n";
  for (const std::string& rest :
       {"1;" + std::string(80'000, 'a'), "0\r\nX: " + std::string(80'000, 'a'), trailers}) {
    EXPECT_THAT(Ask(server, header + rest), HasSubstr(" 431 ")) << rest.substr(0, 9);
  }
  EXPECT_THAT(Ask(server, header + "2;x=y\r\nab\r\n0\r\nX: a\r\n\r\n"), HasSubstr("200 OK"));
}

// Who may not send a long body is told before it is read, and the connection ends, as what comes
// next is no request; a short one costs no connection.
TEST(HttpServerTest, LongBodiesAreReadWhenTheHandlerAsks) {
  HttpServerOptions options;
  options.limits.short_bytes = 4;
  options.limits.body_timeout = absl::Milliseconds(50);
  RunningHttpServer server(options, [](HttpExchange& exchange) -> Awaitable<void> {
    const bool may = exchange.request().path == "/";
    const std::string body = exchange.request().body;
    if (may) {
      co_await Repeat(exchange);
    } else {
      co_await exchange.Reply(PlainReply(401, "no, but \"" + body + "\""));
    }
  });
  const auto post = [](const std::string& path, const std::string& length) {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + "\r\n\r\n";
  };
  RawClient client(server.port());
  client.Send(post("/no", "4") + "body");
  EXPECT_THAT(client.ReadUntil("no, but \"body\""), HasSubstr(" 401 "));
  client.Send(post("/", "5") + "body!");
  EXPECT_THAT(client.ReadUntil("POST / body!."), HasSubstr("200 OK"));
  client.Send(post("/no", "5"));  // the body is not waited for
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, HasSubstr("no, but \"\""));
  EXPECT_THAT(answer, HasSubstr("Connection: close"));
  EXPECT_THAT(Ask(server, post("/", "5") + "bo"), ::testing::IsEmpty());  // and gone
}

TEST(HttpServerTest, AllAnswersTogetherHaveALimit) {
  HttpServerOptions options;
  const std::string large(8 << 20, 'x');  // more than sockets hold
  options.limits.max_answers_bytes = std::ssize(large) + 100'000;
  RunningHttpServer server(options, [&](HttpExchange& exchange) -> Awaitable<void> {
    HttpReply reply;
    reply.body = exchange.request().path == "/large" ? large : std::string(70'000, 'y');
    if (exchange.request().path == "/short") reply.body = "short";
    co_await exchange.Reply(std::move(reply));
  });
  RawClient slow(server.port());
  slow.Send(Get("/large"));
  slow.ReadUntil("\r\n\r\n");
  EXPECT_THAT(Ask(server, Get("/large", kLast)), HasSubstr("503 Service Unavailable"));
  EXPECT_THAT(Ask(server, Get("/", kLast)), HasSubstr("200 OK"));
  EXPECT_THAT(Ask(server, Get("/short", kLast)), HasSubstr("200 OK"));
  EXPECT_EQ(slow.ReadUntil(large).size(), large.size());
  EXPECT_THAT(Ask(server, Get("/large", kLast)), HasSubstr("200 OK"));
}

TEST(HttpServerTest, PagesOfOtherNamesAreRefusedOnLoopback) {
  HttpServerOptions options;
  options.allowed_hosts = {"Api.Example.com"};
  RunningHttpServer server(options, &Repeat);
  const auto status_for = [&](const std::string& host) {
    return Ask(server, "GET / HTTP/1.1\r\nConnection: close\r\nHost: " + host + "\r\n\r\n")
        .substr(9, 3);
  };
  for (const char* host :
       {"localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]", "gateway:8000",
        "api.example.com", "API.example.com.:80", "app.localhost", "host.docker.internal:11434"}) {
    EXPECT_EQ(status_for(host), "200") << host;
  }
  for (const char* host : {"evil.example.com", "evil.example.com:8000", "127.0.0.1.example.com",
                           "localhost.example.com", "evil.com:localhost", "internal.example.com"}) {
    EXPECT_EQ(status_for(host), "403") << host;
  }
  HttpServerOptions open;
  open.allowed_hosts = {"*"};
  RunningHttpServer any(open, &Repeat);
  EXPECT_THAT(Ask(any, "GET / HTTP/1.1\r\nConnection: close\r\nHost: a.example\r\n\r\n"),
              HasSubstr("200 OK"));
}

TEST(HttpServerTest, PagesOfPermittedOriginsMayAskAndRead) {
  HttpServerOptions options;
  options.allowed_origins = {"https://Chat.example.com"};
  RunningHttpServer server(options, &Repeat);
  const std::string asks =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n"
      "Access-Control-Request-Private-Network: true\r\n";
  const auto preflight = [&](RunningHttpServer& to, const std::string& origin) {
    return Ask(to, "OPTIONS / HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\nOrigin: " +
                       origin + "\r\n" + asks + "\r\n");
  };
  const auto get = [&](RunningHttpServer& from, const std::string& path, const std::string& lines) {
    return Ask(from, "GET " + path + " HTTP/1.1\r\nConnection: close\r\nHost: localhost\r\n" +
                         lines + "\r\n");
  };
  EXPECT_THAT(preflight(server, "https://chat.example.com"),
              AllOf(HasSubstr("204 No Content"),
                    HasSubstr("Access-Control-Allow-Origin: https://chat.example.com\r\n"),
                    HasSubstr("Access-Control-Allow-Methods: GET, HEAD, POST\r\n"),
                    HasSubstr("Access-Control-Allow-Headers: authorization\r\n"),
                    HasSubstr("Access-Control-Allow-Private-Network: true\r\n"),
                    HasSubstr("Vary: Origin\r\n")));
  EXPECT_THAT(get(server, "/", "Origin: https://chat.example.com\r\n"),
              AllOf(HasSubstr("200 OK"), HasSubstr("Access-Control-Allow-Origin: https://chat")));
  for (const char* other : {"https://evil.example.com", "http://chat.example.com", "null"}) {
    EXPECT_THAT(preflight(server, other), Not(HasSubstr("Access-Control"))) << other;
    EXPECT_THAT(get(server, "/", absl::StrCat("Origin: ", other, "\r\n")),
                Not(HasSubstr("Access-Control")));
  }
  EXPECT_THAT(get(server, "/", ""), Not(HasSubstr("Access-Control")));
  options.allowed_origins = {"*"};
  RunningHttpServer open(options, &Repeat);
  EXPECT_THAT(preflight(open, "https://a.example"),
              AllOf(HasSubstr("204"), HasSubstr("Access-Control-Allow-Origin: *\r\n")));
  // An OPTIONS that no browser asks is the handler's.
  EXPECT_THAT(Ask(open, "OPTIONS / HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n"),
              HasSubstr("200 OK"));
}

TEST(HttpServerTest, AllBodiesTogetherHaveALimit) {
  HttpServerOptions options;
  options.limits.short_bytes = 0;
  options.limits.max_bodies_bytes = 10;
  std::atomic<bool> is_held = false, may_go_on = false;
  RunningHttpServer server(options, [&](HttpExchange& exchange) -> Awaitable<void> {
    boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
    const bool is_slow = exchange.request().path == "/slow";
    if (is_slow) co_await exchange.ReadBody();
    if (is_slow) is_held = true;
    while (is_slow && !may_go_on) {
      timer.expires_after(std::chrono::milliseconds(1));
      co_await timer.async_wait(boost::asio::use_awaitable);
    }
    co_await Repeat(exchange);
  });
  RawClient promising(server.port()), slow(server.port());
  promising.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
  promising.ReadUntil("100 Continue\r\n\r\n");  // of its 9 bytes none is counted yet
  slow.Send("POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n12345678");
  while (!is_held) std::this_thread::yield();  // its 8 are
  const std::string refused = Ask(server, testing::PostJson("/", "xxx"));
  EXPECT_THAT(refused, HasSubstr("503 Service Unavailable"));
  EXPECT_THAT(refused, HasSubstr("Retry-After: 1"));
  EXPECT_THAT(Ask(server, testing::PostJson("/", "xx")), HasSubstr("200 OK"));
  may_go_on = true;
  EXPECT_THAT(slow.ReadUntil("12345678."), HasSubstr("200 OK"));
  EXPECT_THAT(Ask(server, testing::PostJson("/", "0123456789")), HasSubstr("200 OK"));
}

TEST(HttpServerTest, ABodyInChunksCountsWhatItHas) {
  HttpServerOptions options;
  options.limits.short_bytes = 0;
  options.limits.max_body_bytes = 10;
  options.limits.max_bodies_bytes = 12;
  std::atomic<bool> may_go_on = false;
  RunningHttpServer server(options, [&](HttpExchange& exchange) -> Awaitable<void> {
    boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
    if (exchange.request().path == "/slow") co_await exchange.ReadBody();
    while (exchange.request().path == "/slow" && !may_go_on) {
      timer.expires_after(std::chrono::milliseconds(1));
      co_await timer.async_wait(boost::asio::use_awaitable);
    }
    co_await Repeat(exchange);
  });
  RawClient slow(server.port());
  slow.Send("POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  while (server.num_connections() == 0) std::this_thread::yield();
  slow.Send("4\r\nbody\r\n0\r\n\r\n");
  std::string answer;
  do {
    answer = Ask(server, testing::PostJson("/", "8 bytes."));
  } while (answer.find("503") != std::string::npos);  // not read yet
  EXPECT_THAT(answer, HasSubstr("POST / 8 bytes.."));
  may_go_on = true;
  EXPECT_THAT(slow.ReadUntil("body."), HasSubstr("200 OK"));
}

TEST(HttpServerTest, WhoSaysNothingIsLetGo) {
  HttpServerOptions options;
  options.limits.header_timeout = absl::Milliseconds(20);
  options.limits.body_timeout = absl::Milliseconds(20);
  options.limits.idle_timeout = absl::Milliseconds(20);
  RunningHttpServer server(options, &Repeat);
  EXPECT_EQ(Ask(server, ""), "");
  EXPECT_EQ(Ask(server, "GET / HT"), "");
  EXPECT_EQ(Ask(server, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo"), "");
  HttpServerOptions patient;  // but between requests
  patient.limits.idle_timeout = absl::Milliseconds(20);
  RunningHttpServer other(patient, &Repeat);
  EXPECT_THAT(Ask(other, Get("/a")), ::testing::EndsWith("GET /a ."));  // then nothing more
}

TEST(HttpServerTest, AHandlerSeesThatItsClientHasGone) {
  std::atomic<int> num_begun = 0, num_gone = 0;
  RunningHttpServer server({}, [&](HttpExchange& exchange) -> Awaitable<void> {
    boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
    ++num_begun;
    while (!exchange.PeerHasGone()) {
      timer.expires_after(std::chrono::milliseconds(1));
      co_await timer.async_wait(boost::asio::use_awaitable);
    }
    ++num_gone;
  });
  {
    RawClient client(server.port());
    client.Send(Get("/a") + Get("/b"));  // a second one waits: not the end
    while (num_begun == 0) std::this_thread::yield();
  }
  EXPECT_TRUE(server.AllEnd());
  EXPECT_GE(num_gone, 1);
}

TEST(HttpServerTest, MoreConnectionsWaitUntilOthersEnd) {
  HttpServerOptions options;
  options.limits.max_connections = 1;
  RunningHttpServer server(options, [](HttpExchange& exchange) -> Awaitable<void> {
    boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
    if (exchange.request().path == "/a") co_await exchange.BeginStream("text/plain");
    while (exchange.request().path == "/a" && !exchange.PeerHasGone()) {
      timer.expires_after(std::chrono::milliseconds(1));
      co_await timer.async_wait(boost::asio::use_awaitable);
    }
    co_await Repeat(exchange);
  });
  RawClient first(server.port());
  first.Send(Get("/a"));
  first.ReadUntil("\r\n\r\n");  // it is being answered
  RawClient second(server.port());
  second.Send(Get("/b", kLast));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(server.num_connections(), 1);  // it could accept by now
  first.Close();
  EXPECT_THAT(second.ReadAll(), HasSubstr("GET /b ."));
}

// Nobody shuts others out by doing nothing.
TEST(HttpServerTest, WhoIsIdleMakesRoomTheLongestFirst) {
  HttpServerOptions options;
  options.limits.max_connections = 2;
  RunningHttpServer server(options, &Repeat);
  RawClient first(server.port()), second(server.port());
  for (RawClient* client : {&first, &second, &first}) {
    client->Send(Get("/a"));
    client->ReadUntil("GET /a .");
  }
  RawClient third(server.port());
  third.Send(Get("/b"));
  EXPECT_THAT(third.ReadUntil("GET /b ."), HasSubstr("200 OK"));
  EXPECT_EQ(second.ReadAll(), "");
  first.Send(Get("/c", kLast));
  EXPECT_THAT(first.ReadAll(), HasSubstr("GET /c ."));
}

// Nor by requests that do not end: whose bodies do not come, or of which a letter has come behind
// another one.
TEST(HttpServerTest, SoDoesWhoseRequestIsAwaitedForLong) {
  const std::string body =
      "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n";
  struct Case {
    std::string begun;
    std::string answer;  // after which the rest is awaited
  };
  for (const Case& each : {Case{body, "100 Continue"}, Case{Get("/a") + "G", "GET /a ."}}) {
    HttpServerOptions options;
    options.limits.max_connections = 2;
    options.limits.body_timeout_when_full = absl::Milliseconds(5);
    RunningHttpServer server(options, &Repeat);
    RawClient first(server.port()), second(server.port());
    for (RawClient* client : {&first, &second}) {
      client->Send(each.begun);
      client->ReadUntil(each.answer);
    }
    RawClient third(server.port());
    third.Send(Get("/b", kLast));
    EXPECT_THAT(third.ReadAll(), HasSubstr("GET /b .")) << each.begun;
  }
}

TEST(HttpServerTest, DrainingEndsIdleConnectionsAndLetsAnswersEnd) {
  std::atomic<bool> may_go_on = false;
  RunningHttpServer server({}, [&](HttpExchange& exchange) -> Awaitable<void> {
    boost::asio::steady_timer timer(co_await boost::asio::this_coro::executor);
    co_await exchange.BeginStream("text/plain");
    co_await exchange.Write("begun");
    while (!may_go_on) {
      timer.expires_after(std::chrono::milliseconds(1));
      co_await timer.async_wait(boost::asio::use_awaitable);
    }
    co_await exchange.Write("ended");
    co_await exchange.EndStream();
  });
  RawClient idle(server.port()), busy(server.port());
  busy.Send(Get("/"));
  busy.ReadUntil("begun");
  server.Drain();
  EXPECT_EQ(idle.ReadAll(), "");
  may_go_on = true;
  EXPECT_THAT(busy.ReadAll(), HasSubstr("ended"));
  EXPECT_TRUE(server.AllEnd());
}

class HttpsServerTest : public ::testing::Test {
 protected:
  HttpsServerTest() {
    const auto own = LoadTlsIdentity(authority_.Issue("server"));
    const auto clients = LoadTlsIdentity(authority_.Issue("client"));
    EXPECT_TRUE(own.ok() && clients.ok()) << own.status() << clients.status();
    HttpServerOptions options;
    options.tls = *own;
    clients_ = *clients;
    server_ = std::make_unique<RunningHttpServer>(options, &Repeat);
  }
  ~HttpsServerTest() override { Keep(nullptr); }
  void Keep(SSL_SESSION* session) { SSL_SESSION_free(std::exchange(session_, session)); }

  // Of a client of its own, which goes on with the last session, if there is one, and leaves its
  // own.
  std::string AskTls(bool shows_certificate) {
    namespace ssl = boost::asio::ssl;
    ssl::context context(ssl::context::tls_client);
    context.add_certificate_authority(boost::asio::buffer(clients_.authority));
    context.set_verify_mode(ssl::verify_peer);
    if (shows_certificate) {
      context.use_certificate_chain(boost::asio::buffer(clients_.certificate));
      context.use_private_key(boost::asio::buffer(clients_.key), ssl::context::pem);
    }
    boost::asio::io_context io;
    ssl::stream<boost::asio::ip::tcp::socket> stream(io, context);
    if (session_ != nullptr) SSL_set_session(stream.native_handle(), session_);
    stream.next_layer().connect(
        {boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(server_->port())});
    boost::system::error_code error;
    stream.handshake(ssl::stream_base::client, error);
    if (!error) boost::asio::write(stream, boost::asio::buffer(Get("/a", kLast)), error);
    std::string answer(4096, '\0');
    size_t size = 0;
    while (!error && size < answer.size()) {
      size += stream.read_some(boost::asio::buffer(&answer[size], answer.size() - size), error);
    }
    is_resumed_ = SSL_session_reused(stream.native_handle()) == 1;
    // A copy: the stream's end makes its own session one that cannot be resumed.
    Keep(SSL_SESSION_dup(SSL_get0_session(stream.native_handle())));
    return answer.substr(0, size);
  }

  const testing::TempDirectory directory_;
  const testing::TestAuthority authority_{directory_.path(), "authority"};
  TlsIdentity clients_;
  std::unique_ptr<RunningHttpServer> server_;
  SSL_SESSION* session_ = nullptr;
  bool is_resumed_ = false;
};

TEST_F(HttpsServerTest, SpeaksTlsToThoseItTrusts) {
  EXPECT_THAT(Ask(*server_, Get("/a", kLast)), Not(HasSubstr("200")));  // in clear
  EXPECT_THAT(AskTls(true), HasSubstr("GET /a ."));
  EXPECT_FALSE(is_resumed_);
  Keep(nullptr);
  EXPECT_EQ(AskTls(false), "");
}

// As browsers and Python's clients do, who would fail each second time.
TEST_F(HttpsServerTest, SessionsAreResumed) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(AskTls(true), HasSubstr("GET /a .")) << i;
    EXPECT_EQ(is_resumed_, i > 0) << i;
  }
}

TEST(HttpServerTest, WhereItCannotListenIsAnError) {
  boost::asio::io_context io;
  RunningHttpServer server({}, &Repeat);
  HttpServerOptions options;
  options.listen = {.host = "127.0.0.1", .port = server.port()};
  EXPECT_EQ(HttpServer::Start(io, options, &Repeat).status().code(),
            absl::StatusCode::kUnavailable);
  options.listen = {.host = "no such host", .port = 1};
  EXPECT_EQ(HttpServer::Start(io, options, &Repeat).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.listen = {.host = "127.0.0.1", .port = 0};
  options.tls = TlsIdentity{"no certificate", "no key", ""};
  EXPECT_EQ(HttpServer::Start(io, options, &Repeat).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep
