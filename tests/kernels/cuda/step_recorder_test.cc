// Steps that repeat: run, recorded, replayed, forgotten.
#include "kernels/cuda/step_recorder.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

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
      EXPECT_EQ(cuda::LaunchAdd(sum_.data(), one_.data(), DType::kF32, 1, stream_), cudaSuccess);
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

TEST_F(StepRecorderTest, WhatIsKeptHasNotRunAndIsReplayedAtOnce) {
  cuda::StepRecorder recorder(stream_, 2);
  const auto keep = [&](uint64_t key) {
    return recorder.Keep(key, [this] {
      ++num_calls_;
      EXPECT_EQ(cuda::LaunchAdd(sum_.data(), one_.data(), DType::kF32, 1, stream_), cudaSuccess);
      return result_;
    });
  };
  ASSERT_TRUE(keep(1).ok());
  ASSERT_TRUE(keep(1).ok());  // is already
  EXPECT_EQ(num_calls_, 1);
  EXPECT_EQ(Sum(), 0.0f);
  ASSERT_TRUE(Step(recorder, 1).ok());
  EXPECT_EQ(num_calls_, 1);
  EXPECT_EQ(Sum(), 1.0f);
  ASSERT_TRUE(Step(recorder, 2).ok());  // as it is
  ASSERT_TRUE(keep(2).ok());
  EXPECT_FALSE(recorder.has_left_some());
  ASSERT_TRUE(keep(3).ok());  // no room: the others stay
  EXPECT_TRUE(recorder.has_left_some());
  EXPECT_EQ(num_calls_, 3);
  for (const uint64_t key : {1, 2}) ASSERT_TRUE(Step(recorder, key).ok());
  EXPECT_EQ(num_calls_, 3);
  EXPECT_EQ(Sum(), 4.0f);
  recorder.Forget();
  EXPECT_FALSE(recorder.has_left_some());
  ASSERT_TRUE(keep(3).ok());
  EXPECT_EQ(recorder.num_steps(), 1u);
}

#ifdef LOCKSTEP_CUDA_EMULATION
void LeaveMemoryForTwoSteps() {
  constexpr int64_t kGraphBytes = 1 << 20;
  cuda_emulation::SetDevice(
      {.memory_bytes = cuda_emulation::AllocatedBytes() + 2 * kGraphBytes + kGraphBytes / 2,
       .graph_bytes = kGraphBytes});
}

TEST_F(StepRecorderTest, WhatIsKeptStaysWhereMemoryEnds) {
  LeaveMemoryForTwoSteps();
  {
    cuda::StepRecorder recorder(stream_);
    const auto nothing = [] { return absl::OkStatus(); };
    for (uint64_t key = 0; key < 5; ++key) ASSERT_TRUE(recorder.Keep(key, nothing).ok());
    EXPECT_TRUE(recorder.has_left_some());
    EXPECT_EQ(recorder.num_steps(), 2u);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  cuda_emulation::SetDevice({});
}

TEST_F(StepRecorderTest, WithoutMemoryForRecordingsStepsRunAsTheyAre) {
  LeaveMemoryForTwoSteps();
  {
    cuda::StepRecorder recorder(stream_);
    float sum = 0;
    for (int round = 0; round < 4; ++round) {
      for (uint64_t key = 0; key < 4; ++key) {
        ASSERT_TRUE(Step(recorder, key).ok());
        EXPECT_EQ(Sum(), ++sum) << "key " << key << ", round " << round;
      }
    }
    // Two have room: of two steps that take turns no more is asked.
    for (int time = 0; time < 3; ++time) {
      for (const uint64_t key : {0, 1}) ASSERT_TRUE(Step(recorder, key).ok());
    }
    const int num_calls = num_calls_;
    for (const uint64_t key : {0, 1}) ASSERT_TRUE(Step(recorder, key).ok());
    EXPECT_EQ(num_calls_, num_calls);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  cuda_emulation::SetDevice({});
}

TEST_F(StepRecorderTest, WithoutAnyMemoryToo) {
  cuda_emulation::SetDevice(
      {.memory_bytes = cuda_emulation::AllocatedBytes() + 1000, .graph_bytes = 1 << 20});
  {
    cuda::StepRecorder recorder(stream_);
    for (int time = 1; time <= 5; ++time) {
      ASSERT_TRUE(Step(recorder, 7).ok());
      EXPECT_EQ(Sum(), static_cast<float>(time));
    }
    EXPECT_EQ(num_calls_, 6) << "recording was tried more than once";
  }
  cuda_emulation::SetDevice({});
}
#endif

}  // namespace
}  // namespace lockstep::testing
