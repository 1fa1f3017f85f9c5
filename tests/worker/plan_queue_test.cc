#include "runtime/worker/plan_queue.h"

#include <thread>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

engine::StepPlan Plan(uint64_t step_id) {
  engine::StepPlan plan;
  plan.step_id = step_id;
  return plan;
}

TEST(PlanQueue, DeliversInOrderThenEndsAfterClose) {
  PlanQueue queue;
  ASSERT_TRUE(queue.Push(Plan(1)).ok());
  ASSERT_TRUE(queue.Push(Plan(2)).ok());
  queue.Close();
  ASSERT_TRUE(queue.Push(Plan(3)).ok());  // too late: dropped
  EXPECT_EQ((*queue.Pop())->step_id, 1u);
  EXPECT_EQ((*queue.Pop())->step_id, 2u);
  EXPECT_FALSE(queue.Pop()->has_value());
}

TEST(PlanQueue, FailureOvertakesPlansAndTheFirstStays) {
  PlanQueue queue;
  ASSERT_TRUE(queue.Push(Plan(1)).ok());
  queue.Fail(absl::UnavailableError("gone"));
  queue.Fail(absl::InternalError("later"));
  EXPECT_EQ(queue.Pop().status(), absl::UnavailableError("gone"));
}

TEST(PlanQueue, RefusesMorePlansThanItsCapacity) {
  PlanQueue queue;
  for (size_t i = 0; i < PlanQueue::kCapacity; ++i) ASSERT_TRUE(queue.Push(Plan(i + 1)).ok());
  EXPECT_EQ(queue.Push(Plan(9)).code(), absl::StatusCode::kResourceExhausted);
}

TEST(PlanQueue, WakesASleepingConsumer) {
  PlanQueue queue;
  std::thread producer([&] {
    for (uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(queue.Push(Plan(i)).ok());
    queue.Close();
  });
  uint64_t last = 0;
  for (auto plan = queue.Pop(); plan->has_value(); plan = queue.Pop()) {
    EXPECT_EQ((*plan)->step_id, ++last);
  }
  EXPECT_EQ(last, 100u);
  producer.join();
}

TEST(PlanQueue, WaitsForAPlanOrForSomethingElse) {
  PlanQueue queue;
  int num_asked = 0;
  EXPECT_FALSE(queue.PopUnless([&] { return ++num_asked == 3; })->has_value());
  EXPECT_EQ(num_asked, 3);
  ASSERT_TRUE(queue.Push(Plan(1)).ok());
  EXPECT_EQ((*queue.PopUnless([] { return true; }))->step_id, 1u);
  std::thread producer([&] { ASSERT_TRUE(queue.Push(Plan(2)).ok()); });
  EXPECT_EQ((*queue.PopUnless([] { return false; }))->step_id, 2u);
  producer.join();
  queue.Close();
  EXPECT_FALSE(queue.PopUnless([] { return false; })->has_value());
  queue.Fail(absl::UnavailableError("gone"));
  EXPECT_FALSE(queue.PopUnless([] { return false; }).ok());
}

}  // namespace
}  // namespace lockstep
