#include "runtime/controller/text_thread.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLongText = 4 << 20;

// Keeps the thread from what comes after it.
class HeldTurn {
 public:
  explicit HeldTurn(TextThread& thread) {
    thread.Run(kLongText, [this](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      has_begun_.Notify();
      may_end_.WaitForNotification();
    });
    has_begun_.WaitForNotification();
  }
  void End() { may_end_.Notify(); }

 private:
  absl::Notification has_begun_;
  absl::Notification may_end_;
};

TEST(TextThreadTest, WhatIsShortIsDoneAtOnceAndTheRestInOrder) {
  TextThread thread;
  HeldTurn held(thread);
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    thread.Run(TextThread::kMaxInlineBytes + 1, [&order, i](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      order.push_back(i);
    });
  }
  std::thread::id worker;
  thread.Run(TextThread::kMaxInlineBytes, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    worker = std::this_thread::get_id();
  });
  EXPECT_EQ(worker, std::this_thread::get_id());
  EXPECT_TRUE(order.empty());
  held.End();
  thread.Stop();
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2));
}

TEST(TextThreadTest, NoMoreWaitsThanIsWorkedOffSoon) {
  std::atomic<bool> has_room = false;  // which the thread's last work says
  TextThread thread;
  HeldTurn held(thread);
  std::atomic<int> num_done = 0;
  absl::Status last;
  int num_taken = 1;  // the held one
  for (; last.ok() && num_taken < 1000; ++num_taken) {
    last = absl::OkStatus();
    thread.Run(kLongText, [&](const absl::Status& status) {
      if (!status.ok()) last = status;  // by the caller
      ++num_done;
    });
  }
  EXPECT_EQ(num_taken - 1, TextThread::kMaxWaitingBytes / kLongText);
  EXPECT_EQ(last.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(last.message()),
              AllOf(HasSubstr("67108864 bytes of other requests' texts wait"),
                    HasSubstr("with 4194304 more than 67108864 would")));
  EXPECT_EQ(num_done, 1);
  held.End();
  while (num_done < num_taken - 1) std::this_thread::yield();
  while (!has_room) {  // once the last has gone
    thread.Run(kLongText, [&](const absl::Status& status) { has_room = status.ok(); });
    std::this_thread::yield();
  }
}

TEST(TextThreadTest, OnceItRefusesWhatWaitsIsNotDoneEither) {
  TextThread thread;
  HeldTurn held(thread);
  std::vector<absl::Status> said;
  const auto say = [&](const absl::Status& status) { said.push_back(status); };
  thread.Run(kLongText, say);
  thread.Refuse();
  thread.Run(1, say);
  ASSERT_EQ(said.size(), 1u);
  held.End();
  thread.Stop();
  ASSERT_EQ(said.size(), 2u);
  for (const absl::Status& status : said) {
    EXPECT_EQ(status, absl::UnavailableError("the server is shutting down"));
  }
}

}  // namespace
}  // namespace lockstep
