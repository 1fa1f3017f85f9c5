#include "launcher/job/restart_policy.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

const absl::Time kFirstFailure = absl::FromUnixSeconds(1000);
constexpr absl::Duration kSecond = absl::Seconds(1);

TEST(RestartPolicyTest, AJobThatServedStartsAgainAtOnce) {
  RestartPolicy policy({.max_restarts = 3, .window = 100 * kSecond});
  EXPECT_EQ(policy.OnLoss(kFirstFailure, true), absl::ZeroDuration());
  EXPECT_EQ(policy.num_recent(), 1);
}

TEST(RestartPolicyTest, AJobThatNeverServedWaitsLongerEachTime) {
  RestartPolicy policy({.max_restarts = 100, .window = 1000 * kSecond});
  EXPECT_EQ(policy.OnLoss(kFirstFailure, false), absl::Milliseconds(200));
  EXPECT_EQ(policy.OnLoss(kFirstFailure, false), absl::Milliseconds(400));
  EXPECT_EQ(policy.OnLoss(kFirstFailure, false), absl::Milliseconds(800));
  EXPECT_EQ(policy.OnLoss(kFirstFailure, true), absl::ZeroDuration());
  EXPECT_EQ(policy.OnLoss(kFirstFailure, false), absl::Milliseconds(200));
  for (int i = 0; i < 20; ++i) policy.OnLoss(kFirstFailure, false);
  EXPECT_EQ(policy.OnLoss(kFirstFailure, false), absl::Seconds(10));
}

TEST(RestartPolicyTest, ACrashLoopEndsWithinTheWindow) {
  RestartPolicy policy({.max_restarts = 2, .window = 100 * kSecond});
  EXPECT_TRUE(policy.OnLoss(kFirstFailure, true).has_value());
  EXPECT_TRUE(policy.OnLoss(kFirstFailure + 50 * kSecond, true).has_value());
  EXPECT_FALSE(policy.OnLoss(kFirstFailure + 99 * kSecond, true).has_value());
  EXPECT_EQ(policy.Exhausted(), "2 restarts within 1m40s");
  // The first one is out of the window.
  EXPECT_TRUE(policy.OnLoss(kFirstFailure + 100 * kSecond, true).has_value());
  EXPECT_FALSE(policy.OnLoss(kFirstFailure + 101 * kSecond, true).has_value());
}

// Each start takes two minutes to fail, so that no five fall into the window.
TEST(RestartPolicyTest, ACrashLoopOfSlowStartsEndsWithoutTheWindow) {
  RestartPolicy policy({.max_restarts = 5, .window = 300 * kSecond});
  absl::Time now = kFirstFailure;
  int num_restarts = 0;
  for (int i = 0; i < 10; ++i, now += 120 * kSecond) {
    if (!policy.OnLoss(now, false)) break;
    ++num_restarts;
  }
  EXPECT_EQ(num_restarts, 5);
  EXPECT_EQ(policy.Exhausted(), "6 starts in a row did not come to serve");
}

TEST(RestartPolicyTest, AStartThatServesBeginsTheRowAnew) {
  RestartPolicy policy({.max_restarts = 2, .window = kSecond});
  absl::Time now = kFirstFailure;
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(policy.OnLoss(now += 120 * kSecond, false).has_value()) << i;
    EXPECT_TRUE(policy.OnLoss(now += 120 * kSecond, false).has_value()) << i;
    EXPECT_TRUE(policy.OnLoss(now += 120 * kSecond, true).has_value()) << i;
  }
}

TEST(RestartPolicyTest, ZeroRestartsMeansNever) {
  RestartPolicy policy({.max_restarts = 0, .window = kSecond});
  EXPECT_FALSE(policy.OnLoss(kFirstFailure, true).has_value());
}

}  // namespace
}  // namespace lockstep
