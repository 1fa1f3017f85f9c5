// Streams, events and graphs of the emulated CUDA runtime.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::cuda_emulation {
namespace {

using ::testing::HasSubstr;

__global__ void AddTo(int* value, int amount) { *value += amount; }
__global__ void Double(int* value) { *value *= 2; }

class CudaStreams : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&value_, sizeof(int)), cudaSuccess);
    ASSERT_EQ(cudaMemset(value_, 0, sizeof(int)), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  void TearDown() override {
    SetIssue(Issue::kDeferred);
    SetPatience(30);
    EXPECT_EQ(cudaFree(value_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(joined_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other_), cudaSuccess);
    EXPECT_EQ(TakeFailure(), "");
  }
  void Add(cudaStream_t stream, int amount) {
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = 1;
    config.stream = stream;
    EXPECT_EQ(cudaLaunchKernelEx(&config, AddTo, value_, amount), cudaSuccess);
  }
  void Twice(cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = 1;
    config.stream = stream;
    EXPECT_EQ(cudaLaunchKernelEx(&config, Double, value_), cudaSuccess);
  }
  void Order(cudaStream_t first, cudaStream_t then, cudaEvent_t event) {
    EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(then, event), cudaSuccess);
  }
  // What the device holds at this moment, nothing waited for.
  int Now() const { return *value_; }
  cudaGraphExec_t Captured(const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    work();
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }

  cudaStream_t stream_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaEvent_t joined_ = nullptr;
  int* value_ = nullptr;
};

TEST_F(CudaStreams, WorkIsDoneWhenSomebodyWaits) {
  Add(stream_, 1);
  Add(other_, 10);
  EXPECT_EQ(Now(), 0);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(Now(), 1) << "the other stream was not waited for";
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(Now(), 11);
}

TEST_F(CudaStreams, AMemsetIsWorkOfTheDefaultStreamForWhichOthersDoNotWait) {
  ASSERT_EQ(cudaMemset(value_, 1, 1), cudaSuccess);
  EXPECT_EQ(Now(), 0);
  Add(stream_, 2);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(Now(), 2);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(Now(), 1);
}

TEST_F(CudaStreams, ACopyFromPageableMemoryReturnsWhenItsSourceIsRead) {
  int seven = 7;
  ASSERT_EQ(cudaMemset(value_, 0xff, sizeof(int)), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(value_, &seven, sizeof(int), cudaMemcpyHostToDevice), cudaSuccess);
  seven = 8;
  EXPECT_EQ(Now(), -1);  // it begins when the work before it is done
  Add(stream_, 3);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(Now(), 2);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(Now(), 7);
}

TEST_F(CudaStreams, CopiesFromPinnedMemoryAndToTheHostAreComplete) {
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, sizeof(int)), cudaSuccess);
  *pinned = 9;
  EXPECT_EQ(cudaMemcpy(value_, pinned, sizeof(int), cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(Now(), 9);
  ASSERT_EQ(cudaMemset(value_, 0, sizeof(int)), cudaSuccess);
  int host = 1;
  EXPECT_EQ(cudaMemcpy(&host, value_, sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host, 0);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(CudaStreams, ImmediateWorkIsDoneAtOnce) {
  SetIssue(Issue::kImmediate);
  Add(stream_, 1);
  EXPECT_EQ(Now(), 1);
}

TEST_F(CudaStreams, EventsOrderStreams) {
  Add(stream_, 3);
  Order(stream_, other_, event_);
  Twice(other_);
  EXPECT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
  EXPECT_EQ(Now(), 6);
}

TEST_F(CudaStreams, AnEventIsTheLastRecordBeforeTheWait) {
  Add(stream_, 1);
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  Add(stream_, 10);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(Now(), 1);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
}

TEST_F(CudaStreams, PollingGetsThere) {
  Add(stream_, 1);
  int polls = 0;
  while (cudaStreamQuery(stream_) == cudaErrorNotReady) ++polls;
  EXPECT_GE(polls, 1);
  EXPECT_EQ(Now(), 1);
}

TEST_F(CudaStreams, TheDefaultStreamWaitsForBlockingStreamsOnly) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  Add(stream_, 100);
  Add(blocking, 1);
  int host = 0;
  EXPECT_EQ(cudaMemcpy(&host, value_, sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(host, 1);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(CudaStreams, AsynchronousCopiesReadTheHostWhenTheirTurnComes) {
  int host = 1;
  EXPECT_EQ(cudaMemcpyAsync(value_, &host, sizeof(int), cudaMemcpyHostToDevice, stream_),
            cudaSuccess);
  host = 2;
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(Now(), 2);
}

TEST_F(CudaStreams, OnlyPinnedMemoryIsCopiedToBehindTheHost) {
  Add(stream_, 5);
  int host = 0;
  EXPECT_EQ(cudaMemcpyAsync(&host, value_, sizeof(int), cudaMemcpyDeviceToHost, stream_),
            cudaSuccess);
  EXPECT_EQ(host, 5);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int)), cudaSuccess);
  *pinned = 0;
  Add(stream_, 1);
  EXPECT_EQ(cudaMemcpyAsync(pinned, value_, sizeof(int), cudaMemcpyDeviceToHost, stream_),
            cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(*pinned, 6);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(CudaStreams, GraphsReplayWhatWasCaptured) {
  const cudaGraphExec_t exec = Captured([&] {
    Add(stream_, 1);
    Twice(stream_);
  });
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(Now(), 0) << "capturing does nothing";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(Now(), 14);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(CudaStreams, ACaptureTakesInStreamsThatWaitForIt) {
  const cudaGraphExec_t exec = Captured([&] {
    Add(stream_, 2);
    Order(stream_, other_, event_);
    Twice(other_);
    Order(other_, stream_, joined_);
    Add(stream_, 1);
  });
  EXPECT_EQ(cudaGraphLaunch(exec, other_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
  EXPECT_EQ(Now(), 5);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_F(CudaStreams, ACaptureMustWaitForWhatItForked) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  Order(stream_, other_, event_);
  Twice(other_);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(CudaStreams, AWaitOfTheHostSpoilsACapture) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CudaStreams, ACaptureIsIsolatedFromWorkOutsideIt) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaEventRecord(event_, other_), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event_), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CudaStreams, HandlesThatAreGoneAreRefused) {
  cudaStream_t gone = nullptr;
  ASSERT_EQ(cudaStreamCreate(&gone), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(gone), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(gone), cudaErrorInvalidResourceHandle);
}

}  // namespace
}  // namespace lockstep::cuda_emulation
