#include "launcher/gateway/side_thread.h"

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// A client that may have gone; nothing else is asked of it.
class FakeExchange final : public HttpExchange {
 public:
  explicit FakeExchange(bool has_gone = false) : has_gone_(has_gone) {}

  const HttpRequest& request() const override { return request_; }
  Awaitable<std::optional<HttpReply>> ReadBody() override { co_return std::nullopt; }
  Awaitable<void> Reply(HttpReply) override { co_return; }
  Awaitable<bool> BeginStream(absl::string_view) override { co_return true; }
  Awaitable<bool> Write(absl::string_view) override { co_return true; }
  Awaitable<void> EndStream() override { co_return; }
  bool PeerHasGone() override { return has_gone_; }

 private:
  HttpRequest request_;
  const bool has_gone_;
};

class SideThreadTest : public ::testing::Test {
 protected:
  void Start(FakeExchange& exchange, std::function<void()> work, std::string name) {
    boost::asio::co_spawn(io_, RunAs(exchange, std::move(work), std::move(name)),
                          boost::asio::detached);
  }
  Awaitable<void> RunAs(FakeExchange& exchange, std::function<void()> work, std::string name) {
    const absl::Status status = co_await side_.RunIfSoon(exchange, std::move(work));
    told_.push_back(name + (status.ok() ? "" : ": " + std::string(status.message())));
    if (--num_running_ == 0) guard_.reset();
  }

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_{
      io_.get_executor()};
  SideThread side_;
  int num_running_ = 0;
  std::vector<std::string> told_;
};

TEST_F(SideThreadTest, WorkIsDoneInOrderElsewhereAndNotForThoseWhoHaveGone) {
  FakeExchange here, gone(/*has_gone=*/true);
  const std::thread::id own = std::this_thread::get_id();
  std::string done;
  std::atomic<int> num_at_once = 0;
  num_running_ = 4;
  const auto work = [&](char name) {
    return [&, name] {
      EXPECT_EQ(++num_at_once, 1);
      EXPECT_NE(std::this_thread::get_id(), own);
      done += name;
      --num_at_once;
    };
  };
  Start(here, work('a'), "a");
  Start(here, work('b'), "b");
  Start(gone, work('c'), "c");
  Start(here, work('d'), "d");
  io_.run();
  EXPECT_EQ(done, "abd");
  EXPECT_EQ(told_, (std::vector<std::string>{"a", "b", "c: the client has gone", "d"}));
}

TEST_F(SideThreadTest, NoMoreWaitThanTheLimit) {
  FakeExchange here;
  int num_done = 0;
  const int most = static_cast<int>(SideThread::kMaxWaiting) + 1;  // and one that is worked for
  num_running_ = most + 1;
  for (int i = 0; i <= most; ++i)
    Start(
        here, [&] { ++num_done; }, "");
  io_.run();
  EXPECT_EQ(num_done, most);
  EXPECT_EQ(told_.front(), ": 256 requests wait to be read: retry later");
}

}  // namespace
}  // namespace lockstep
