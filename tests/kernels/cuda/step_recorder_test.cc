// Steps that repeat: run, recorded, replayed, forgotten.
#include "kernels/cuda/step_recorder.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"

namespace lockstep::testing {
namespace {

class StepRecorderTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess); }
  void TearDown() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }

  // A step that adds one to sum_.
  absl::Status Step(cuda::StepRecorder& recorder, uint64_t key) {
    return recorder.Repeat(key, [this] {
      ++num_calls_;
      EXPECT_EQ(cuda::LaunchAdd(sum_.data(), one_.data(), 1, stream_), cudaSuccess);
      return result_;
    });
  }
  float Sum() { return sum_.Read()[0]; }

  cudaStream_t stream_ = nullptr;
  DeviceArray<float> sum_{std::vector<float>{0.0f}};
  DeviceArray<float> one_{std::vector<float>{1.0f}};
  absl::Status result_;
  int num_calls_ = 0;
};

TEST_F(StepRecorderTest, TheThirdTimeNobodyIsAskedAndTheWorkIsDone) {
  cuda::StepRecorder recorder(stream_);
  for (int time = 1; time <= 5; ++time) {
    ASSERT_TRUE(Step(recorder, 7).ok());
    EXPECT_EQ(Sum(), static_cast<float>(time));
    EXPECT_EQ(num_calls_, std::min(time, 2));
  }
  ASSERT_TRUE(Step(recorder, 8).ok());  // another step is its own
  EXPECT_EQ(num_calls_, 3);
  EXPECT_EQ(Sum(), 6.0f);
}

TEST_F(StepRecorderTest, WhatFailsIsNotKept) {
  cuda::StepRecorder recorder(stream_);
  ASSERT_TRUE(Step(recorder, 7).ok());
  result_ = absl::UnavailableError("a peer is gone");
  EXPECT_EQ(Step(recorder, 7), result_);  // while it is recorded
  EXPECT_EQ(Sum(), 1.0f);
  result_ = absl::OkStatus();
  ASSERT_TRUE(Step(recorder, 7).ok());
  ASSERT_TRUE(Step(recorder, 7).ok());
  EXPECT_EQ(num_calls_, 3);
  EXPECT_EQ(Sum(), 3.0f);
}

TEST_F(StepRecorderTest, ForgottenStepsBeginAnew) {
  cuda::StepRecorder recorder(stream_);
  for (int time = 0; time < 3; ++time) ASSERT_TRUE(Step(recorder, 7).ok());
  recorder.Forget();
  for (int time = 0; time < 3; ++time) ASSERT_TRUE(Step(recorder, 7).ok());
  EXPECT_EQ(num_calls_, 4);
  EXPECT_EQ(Sum(), 6.0f);
}

TEST_F(StepRecorderTest, TheOneUsedLongestAgoMakesRoom) {
  cuda::StepRecorder recorder(stream_, /*max_steps=*/2);
  for (const uint64_t key : {1, 1, 2, 2}) ASSERT_TRUE(Step(recorder, key).ok());
  ASSERT_TRUE(Step(recorder, 1).ok());  // replayed
  EXPECT_EQ(num_calls_, 4);
  for (int time = 0; time < 3; ++time) ASSERT_TRUE(Step(recorder, 3).ok());
  EXPECT_EQ(num_calls_, 6);
  ASSERT_TRUE(Step(recorder, 1).ok());  // still there
  EXPECT_EQ(num_calls_, 6);
  ASSERT_TRUE(Step(recorder, 2).ok());  // a new one again
  EXPECT_EQ(num_calls_, 7);
  EXPECT_EQ(Sum(), 10.0f);
}

}  // namespace
}  // namespace lockstep::testing
