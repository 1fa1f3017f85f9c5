#include "launcher/client/retry_clock.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(RetryClock, TriesAgainLessAndLessOftenUntilThePatienceIsOver) {
  RetryClock clock(absl::Seconds(5));
  absl::Time now = kStart;
  absl::Duration last_delay = absl::ZeroDuration();
  int num_tries = 0;
  while (const auto next = clock.Failed(now)) {
    EXPECT_GE(*next - now, last_delay);
    EXPECT_LE(*next - now, RetryClock::kMaxDelay);
    last_delay = *next - now;
    now = *next;
    ++num_tries;
  }
  EXPECT_EQ(last_delay, RetryClock::kMaxDelay);
  EXPECT_GT(num_tries, 5);
  EXPECT_LE(now, kStart + absl::Seconds(5));
}

TEST(RetryClock, ASuccessBeginsAnew) {
  RetryClock clock(absl::Seconds(1));
  EXPECT_TRUE(clock.Failed(kStart));
  EXPECT_TRUE(clock.failing());
  clock.Succeeded();
  EXPECT_FALSE(clock.failing());
  EXPECT_EQ(clock.Failed(kStart + absl::Hours(1)),
            kStart + absl::Hours(1) + RetryClock::kFirstDelay);
}

TEST(RetryClock, WithoutPatienceThereIsNoTry) {
  EXPECT_EQ(RetryClock(absl::ZeroDuration()).Failed(kStart), std::nullopt);
}

}  // namespace
}  // namespace lockstep
