// Kernels that may begin while the one before them runs (programmatic dependent launch).
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <device_instructions.cuh>
#include <functional>

#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::cuda_emulation {
namespace {

using ::testing::HasSubstr;

constexpr int kValues = 4;  // 16 bytes, a block and a thread to each

__global__ void Set(int* values, int value) { values[blockIdx.x] = value; }

__global__ void AddAfterWaiting(int* values, int amount) {
  cuda::LetLaterKernelsBegin();
  cuda::WaitForEarlierKernels();
  values[blockIdx.x] += amount;
}
__global__ void ReadTooEarly(int* values, int amount) {
  const int value = values[blockIdx.x];
  cuda::WaitForEarlierKernels();
  values[blockIdx.x] = value + amount;
}
__global__ void WriteTooEarly(int* values, int amount) {
  values[blockIdx.x] += amount;
  cuda::WaitForEarlierKernels();
}
__global__ void CopyTooEarly(int* values, int amount) {
  alignas(16) __shared__ int copied[kValues];
  cuda::CopyAsync16(copied, values, true);
  cuda::CopyAsyncCommit();
  cuda::WaitForEarlierKernels();
  cuda::CopyAsyncWait<0>();
  values[blockIdx.x] = copied[blockIdx.x] + amount;
}
__global__ void NeverWait(int* values, int amount) { values[blockIdx.x] += amount; }
// Barriers before and after the wait, and a thread that has nothing to do.
__global__ void MeetBeforeAndAfter(int* values, int amount) {
  __shared__ int before[2];
  __shared__ int after[2];
  if (threadIdx.x == 2) return;
  before[threadIdx.x] = amount;
  __syncthreads();
  cuda::WaitForEarlierKernels();
  after[threadIdx.x] = values[blockIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) values[blockIdx.x] = after[1] + before[1];
}

class CudaEarlyKernels : public ::testing::Test {
 protected:
  using Kernel = void (*)(int* values, int amount);

  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&values_, kValues * sizeof(int)), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(values_, 0, kValues * sizeof(int), stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaFree(values_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    SetDevice({});
    EXPECT_EQ(TakeFailure(), "");
  }
  cudaError_t Run(Kernel kernel, int amount, bool overlaps, unsigned threads = 1) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = overlaps ? 1 : 0;
    cudaLaunchConfig_t config = {};
    config.gridDim = kValues;
    config.blockDim = threads;
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, values_, amount);
  }
  std::vector<int> Values() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return std::vector<int>(values_, values_ + kValues);
  }
  std::vector<int> AfterSetting(Kernel kernel) {
    EXPECT_EQ(Run(Set, 10, false), cudaSuccess);
    EXPECT_EQ(Run(kernel, 1, true), cudaSuccess);
    return Values();
  }

  const std::vector<int> right_ = std::vector<int>(kValues, 11);
  cudaStream_t stream_ = nullptr;
  int* values_ = nullptr;
};

TEST_F(CudaEarlyKernels, WhoWaitsFirstFindsWhatEarlierKernelsWrote) {
  EXPECT_EQ(AfterSetting(AddAfterWaiting), right_);
  EXPECT_EQ(Run(Set, 10, false), cudaSuccess);
  EXPECT_EQ(Run(MeetBeforeAndAfter, 1, true, 3), cudaSuccess);
  EXPECT_EQ(Values(), right_);
}

TEST_F(CudaEarlyKernels, WhoTouchesTheirDataBeforeWaitingGoesWrong) {
  EXPECT_NE(AfterSetting(ReadTooEarly), right_);
  EXPECT_NE(AfterSetting(WriteTooEarly), right_);
}

TEST_F(CudaEarlyKernels, CopiesIssuedBeforeWaitingMayHaveReadBefore) {
  EXPECT_NE(AfterSetting(CopyTooEarly), right_);
}

TEST_F(CudaEarlyKernels, WithoutLeaveNothingBeginsEarly) {
  for (const Kernel kernel : {ReadTooEarly, WriteTooEarly, CopyTooEarly, NeverWait}) {
    EXPECT_EQ(Run(Set, 10, false), cudaSuccess);
    EXPECT_EQ(Run(kernel, 1, false), cudaSuccess);
    EXPECT_EQ(Values(), right_);
  }
}

// As soon as those between them wait: of a step's kernels, six or more.
TEST_F(CudaEarlyKernels, SoMayThoseFarBehindIt) {
  for (int num_between = 1; num_between <= 6; ++num_between) {
    EXPECT_EQ(Run(Set, 10, false), cudaSuccess);
    for (int i = 0; i < num_between; ++i) EXPECT_EQ(Run(AddAfterWaiting, 0, true), cudaSuccess);
    EXPECT_EQ(Run(ReadTooEarly, 1, true), cudaSuccess);
    EXPECT_NE(Values(), right_) << num_between << " between them";
  }
}

// That one begins behind all before it, and what follows begins no earlier.
TEST_F(CudaEarlyKernels, NoneBeginsBeforeOneAheadThatDoesNotOverlap) {
  EXPECT_EQ(Run(Set, 10, false), cudaSuccess);
  EXPECT_EQ(Run(AddAfterWaiting, 0, true), cudaSuccess);
  EXPECT_EQ(Run(AddAfterWaiting, 0, false), cudaSuccess);
  EXPECT_EQ(Run(ReadTooEarly, 1, true), cudaSuccess);
  EXPECT_EQ(Values(), right_);
}

TEST_F(CudaEarlyKernels, CopiesAreWaitedForByAll) {
  ASSERT_EQ(cudaMemsetAsync(values_, 1, kValues * sizeof(int), stream_), cudaSuccess);
  EXPECT_EQ(Run(ReadTooEarly, 1, true), cudaSuccess);
  EXPECT_EQ(Values(), std::vector<int>(kValues, 0x01010102));
}

TEST_F(CudaEarlyKernels, WhoDoesNotWaitAtAllFails) {
  EXPECT_EQ(Run(NeverWait, 1, true), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
  EXPECT_THAT(TakeFailure(), HasSubstr("no block waits for earlier kernels"));
}

TEST_F(CudaEarlyKernels, KernelsOfAGraphBeginEarlyAsWell) {
  const auto in_a_graph = [&](Kernel kernel) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(Run(Set, 10, false), cudaSuccess);
    EXPECT_EQ(Run(kernel, 1, true), cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    const std::vector<int> values = Values();
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    return values;
  };
  EXPECT_EQ(in_a_graph(AddAfterWaiting), right_);
  EXPECT_NE(in_a_graph(ReadTooEarly), right_);
}

TEST_F(CudaEarlyKernels, DevicesBeforeHopperCannot) {
  SetDevice({.compute_major = 8});
  EXPECT_EQ(Run(AddAfterWaiting, 1, true), cudaErrorNotSupported);
  EXPECT_EQ(Run(AddAfterWaiting, 1, false), cudaSuccess);
  EXPECT_EQ(Values(), std::vector<int>(kValues, 1));
}

}  // namespace
}  // namespace lockstep::cuda_emulation
