#include "runtime/controller/step_deadline.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr absl::Duration kSecond = absl::Seconds(1);
const StepDeadlineOptions kOptions{
    .factor = 20, .least = 5 * kSecond, .first = 60 * kSecond, .longest = 600 * kSecond};

TEST(StepDeadlineTest, BeforeAnythingWasMeasuredTheFirstLimitHolds) {
  EXPECT_EQ(StepDeadline(kOptions).For(1), 60 * kSecond);
}

TEST(StepDeadlineTest, FastStepsHaveTheLeastLimit) {
  StepDeadline deadline(kOptions);
  for (int i = 0; i < 100; ++i) deadline.Finished(4, absl::Milliseconds(10));
  EXPECT_EQ(deadline.For(4), 5 * kSecond);
}

TEST(StepDeadlineTest, SlowStepsHaveAMultipleOfTheirMedian) {
  StepDeadline deadline(kOptions);
  for (int i = 0; i < 50; ++i) deadline.Finished(4, 2 * kSecond);
  for (int i = 0; i < 13; ++i) deadline.Finished(4, 500 * kSecond);  // outliers do not count
  EXPECT_EQ(deadline.For(4), 40 * kSecond);
}

TEST(StepDeadlineTest, APrefillHasTimeInProportionToItsTokens) {
  StepDeadline deadline(kOptions);
  for (int i = 0; i < 100; ++i) deadline.Finished(4, absl::Milliseconds(100));
  EXPECT_EQ(deadline.For(4), 5 * kSecond);
  EXPECT_EQ(deadline.For(400), 200 * kSecond);
  EXPECT_EQ(deadline.For(1 << 30), 600 * kSecond);
}

TEST(StepDeadlineTest, OldStepsAreForgotten) {
  StepDeadline deadline(kOptions);
  for (int i = 0; i < 100; ++i) deadline.Finished(4, 10 * kSecond);
  for (int i = 0; i < 72; ++i) deadline.Finished(4, kSecond);
  EXPECT_EQ(deadline.For(4), 20 * kSecond);
}

}  // namespace
}  // namespace lockstep
