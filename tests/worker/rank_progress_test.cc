#include "runtime/worker/rank_progress.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(RankProgress, TellsOperationAndLastStep) {
  RankProgress progress;
  EXPECT_EQ(progress.Read().operation, "starting");
  progress.Begin(Operation::kLoading, 41);
  EXPECT_EQ(progress.Read().operation, "loading 41 %");
  progress.Begin(Operation::kWaitingForPacking);
  EXPECT_EQ(progress.Read().operation, "waiting for another rank's packing");
  progress.Begin(Operation::kForward, 17);
  EXPECT_EQ(progress.Read().operation, "forward step 17");
  EXPECT_EQ(progress.Read().last_step, 0u);
  progress.FinishStep(17);
  progress.Begin(Operation::kIdle);
  EXPECT_EQ(progress.Read().operation, "idle");
  EXPECT_EQ(progress.Read().last_step, 17u);
  EXPECT_GE(progress.Read().operation_age_ms, 0);
  EXPECT_EQ(progress.Read().operation_sequence, 4u);
}

}  // namespace
}  // namespace lockstep
