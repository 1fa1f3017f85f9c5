// Products whose algorithms the CUDA backend chooses, over an emulated cuBLASLt that finds some
// that cannot be used (tests/support/cuda_emulation/cublasLt.h).
#include "kernels/cuda/gemm.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kOut = 48, kIn = 32;
constexpr int64_t kMostRows = 300;

class GemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    Random random(1);
    w_host_ = random.Normals(kOut * kIn);
    x_host_ = random.Normals(kMostRows * kIn);
    w_.Write(w_host_);
    x_.Write(x_host_);
  }
  void TearDown() override {
    gemm_.reset();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    cuda_emulation::SetDevice({});
    EXPECT_EQ(cuda_emulation::TakeFailure(), "");
  }
  void Start(bool deterministic = false) {
    auto gemm =
        cuda::Gemm::Create(stream_, {.compute = DType::kF32, .deterministic = deterministic});
    ASSERT_TRUE(gemm.ok()) << gemm.status();
    gemm_ = *std::move(gemm);
    ASSERT_TRUE(gemm_->Prepare(kOut, kIn).ok());
  }
  void Run(int64_t rows) { gemm_->Run({kOut, kIn, w_.data()}, {rows, x_.data()}, y_.data()); }
  // What the last product wrote, before `rows`, and that it left what comes after alone.
  void ExpectRows(int64_t rows) {
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const std::vector<float> got = y_.Read();
    for (int64_t i = 0; i < rows * kOut; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < kIn; ++k) {
        sum += static_cast<double>(x_host_[static_cast<size_t>(i / kOut * kIn + k)]) *
               w_host_[static_cast<size_t>(i % kOut * kIn + k)];
      }
      ASSERT_NEAR(got[static_cast<size_t>(i)], sum, 1e-4) << i << " of " << rows << " rows";
    }
    for (size_t i = static_cast<size_t>(rows * kOut); i < got.size(); ++i) {
      ASSERT_TRUE(std::isnan(got[i])) << i << " of " << rows << " rows";
    }
  }
  void ExpectProduct(int64_t rows) {
    y_.Write(std::vector<float>(kMostRows * kOut, NAN));
    Run(rows);
    ExpectRows(rows);
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::Gemm> gemm_;
  std::vector<float> w_host_, x_host_;
  DeviceArray<float> w_{kOut * kIn}, x_{kMostRows * kIn}, y_{kMostRows * kOut};
};

// Sizes that share an algorithm, in an order in which the first ones find one that the others
// cannot use.
TEST_F(GemmTest, AnAlgorithmOfOneSizeIsNotForcedOnOthers) {
  cuda_emulation::SetDevice({.prefers_whole_tiles = true});
  Start();
  for (const int64_t rows : {16, 15, 9, 32, 17, 24, 31, 64, 40, 63, 256, 129, 255, 288, 300}) {
    ExpectProduct(rows);
  }
}

TEST_F(GemmTest, AllSizesAreMultiplied) {
  for (const bool deterministic : {false, true}) {
    Start(deterministic);
    for (int64_t rows = 1; rows <= 70; ++rows) ExpectProduct(rows);
    ExpectProduct(kMostRows);
  }
}

TEST_F(GemmTest, MeasuringLeavesNoMemoryBehind) {
  Start();
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  const int64_t before = cuda_emulation::AllocatedBytes();
  ExpectProduct(64);
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), before);
}

// Where there is no memory for emptying the cache, too.
TEST_F(GemmTest, MeasuringNeedsNoMemory) {
  Start();
  cuda_emulation::SetDevice({.memory_bytes = cuda_emulation::AllocatedBytes()});
  ExpectProduct(64);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Records a product of so many rows, replays it, and looks at the result.
void RecordAndReplay(cudaStream_t stream, const std::function<void()>& run) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(GemmTest, WhatHasRunIsRecordedWithoutLookingForAlgorithms) {
  Start();
  for (const int64_t rows : {1, 5, 16, 24, 300}) {
    ExpectProduct(rows);
    y_.Write(std::vector<float>(kMostRows * kOut, NAN));
    RecordAndReplay(stream_, [&] { Run(rows); });
    ExpectRows(rows);
  }
}

TEST_F(GemmTest, WhatHasNotRunIsRecordedWithAnAlgorithmOfOtherSizes) {
  cuda_emulation::SetDevice({.prefers_whole_tiles = true});
  Start();
  ExpectProduct(16);
  ExpectProduct(4);
  for (const int64_t rows : {1, 15, 24, 300}) {
    y_.Write(std::vector<float>(kMostRows * kOut, NAN));
    RecordAndReplay(stream_, [&] { Run(rows); });
    ExpectRows(rows);
  }
}

}  // namespace
}  // namespace lockstep::testing
