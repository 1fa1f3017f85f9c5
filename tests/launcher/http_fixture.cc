#include "tests/launcher/http_fixture.h"

#include <poll.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <future>

#include "gtest/gtest.h"
#include "kernels/base/check.h"

namespace lockstep::testing {

using boost::asio::ip::tcp;

RunningHttpServer::RunningHttpServer(HttpServerOptions options, HttpHandler handler) {
  options.listen = {.host = "127.0.0.1", .port = 0};
  auto server = HttpServer::Start(io_, options, std::move(handler));
  LS_CHECK(server.ok()) << server.status();
  server_ = *std::move(server);
  port_ = std::stoi(server_->url().substr(server_->url().rfind(':') + 1));
  thread_ = std::thread([this] {
    const auto work = boost::asio::make_work_guard(io_);
    io_.run();
  });
}

RunningHttpServer::~RunningHttpServer() {
  OnThread([this] { server_->Close(); });
  EXPECT_TRUE(AllEnd());
  io_.stop();
  thread_.join();
}

template <typename Body>
void RunningHttpServer::OnThread(Body body) {
  std::promise<void> done;
  boost::asio::post(io_, [&] {
    body();
    done.set_value();
  });
  done.get_future().wait();
}

void RunningHttpServer::Drain() {
  OnThread([this] { server_->Drain(); });
}

int RunningHttpServer::num_connections() {
  int count = 0;
  OnThread([&] { count = server_->num_connections(); });
  return count;
}

bool RunningHttpServer::AllEnd() {
  for (int i = 0; i < 6000 && num_connections() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return num_connections() == 0;
}

RawClient::RawClient(int port) : socket_(io_) {
  socket_.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(port)});
}

// What the server no longer wants to read is no error: its answer says so.
void RawClient::Send(const std::string& bytes) {
  boost::system::error_code ignored;
  boost::asio::write(socket_, boost::asio::buffer(bytes), ignored);
}

std::string RawClient::ReadUntil(const std::string& end) {
  char piece[4096];
  while (end.empty() || read_.find(end) == std::string::npos) {
    pollfd polled{socket_.native_handle(), POLLIN, 0};
    if (::poll(&polled, 1, 60'000) <= 0) break;
    boost::system::error_code error;
    const size_t size = socket_.read_some(boost::asio::buffer(piece), error);
    read_.append(piece, size);
    if (error) break;
  }
  const size_t at = end.empty() ? std::string::npos : read_.find(end);
  const size_t size = at == std::string::npos ? read_.size() : at + end.size();
  std::string asked = read_.substr(0, size);
  read_.erase(0, size);
  return asked;
}

std::string PostJson(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

}  // namespace lockstep::testing
