// An HttpServer on a thread of its own, and clients that say to it byte for byte what a test wants.
#pragma once

#include <utility>  // before Boost 1.74's awaitable.hpp

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <thread>

#include "launcher/http/http_server.h"

namespace lockstep::testing {

class RunningHttpServer {
 public:
  RunningHttpServer(HttpServerOptions options, HttpHandler handler);
  // Closes all connections and waits for their handlers.
  ~RunningHttpServer();

  int port() const { return port_; }
  // On the server's thread, and waited for.
  void Drain();
  int num_connections();
  // True once there are no connections; false when that takes more than a minute.
  bool AllEnd();

 private:
  template <typename Body>
  void OnThread(Body body);

  boost::asio::io_context io_{1};
  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
  std::thread thread_;
};

class RawClient {
 public:
  explicit RawClient(int port);
  void Send(const std::string& bytes);
  // What comes until that has been seen, the server closes, or a minute has passed.
  std::string ReadUntil(const std::string& end);
  std::string ReadAll() { return ReadUntil(""); }
  void Close() { socket_.close(); }

 private:
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_;
  std::string read_;  // beyond what was asked for
};

// "POST PATH HTTP/1.1" with a JSON body; Connection: close.
std::string PostJson(const std::string& path, const std::string& body,
                     const std::string& headers = "");

}  // namespace lockstep::testing
