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
  // The first one is out of the window.
  EXPECT_TRUE(policy.OnLoss(kFirstFailure + 100 * kSecond, true).has_value());
  EXPECT_FALSE(policy.OnLoss(kFirstFailure + 101 * kSecond, true).has_value());
}

TEST(RestartPolicyTest, ZeroRestartsMeansNever) {
  RestartPolicy policy({.max_restarts = 0, .window = kSecond});
  EXPECT_FALSE(policy.OnLoss(kFirstFailure, true).has_value());
}

}  // namespace
}  // namespace lockstep
