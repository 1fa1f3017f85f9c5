// Products whose algorithms the CUDA backend chooses, over an emulated cuBLASLt that finds some
// that cannot be used (tests/support/cuda_emulation/cublasLt.h).
#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fp8_devices.h"
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
// cannot use, whether cuBLASLt says so beforehand or not.
TEST_F(GemmTest, AnAlgorithmOfOneSizeIsNotForcedOnOthers) {
  for (const bool is_told : {true, false}) {
    cuda_emulation::SetDevice({.prefers_whole_tiles = true, .checks_algorithms = is_told});
    Start();
    for (const int64_t rows : {16, 15, 9, 32, 17, 24, 31, 64, 40, 63, 256, 129, 255, 288, 300}) {
      ExpectProduct(rows);
    }
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

// ---- of few rows, where our kernels take part ----

class FewRowsTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kMost = 65;

  void SetUp() override {
    // Measured against this any of our kernels is faster.
    cuda_emulation::SetDevice({.product_seconds = 0.02});
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    Random random(1);
    const std::vector<BF16> w = Narrowed<BF16>(random.Normals(kOut * kIn));
    const std::vector<BF16> x = Narrowed<BF16>(random.Normals(kMost * kIn));
    x_host_ = ToFloats(x);
    x_.Write(x);
    w_.Write(w);
    if (GetParam()) {
      EXPECT_EQ(cuda::LaunchQuantizeFp8(w_.data(), DType::kBF16, kOut, kIn,
                                        {q_.data(), scales_.data()}, nullptr),
                cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    }
    w_host_ = ToFloats(w);
  }
  void TearDown() override {
    gemm_.reset();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    cuda_emulation::SetDevice({});
    EXPECT_EQ(cuda_emulation::TakeFailure(), "");
  }
  void Start(bool deterministic, bool overlaps = false) {
    auto gemm = cuda::Gemm::Create(cuda::KernelStream(stream_, overlaps),
                                   {.compute = DType::kBF16, .deterministic = deterministic});
    ASSERT_TRUE(gemm.ok()) << gemm.status();
    gemm_ = *std::move(gemm);
    ASSERT_TRUE(gemm_->Prepare(kOut, kIn, GetParam()).ok());
    if (GetParam()) gemm_->QuantizeIn(MemoryForRows(kMost, kIn));
  }
  void Run(int64_t rows, cuda::Gemm::Origin origin = cuda::Gemm::Origin::kOther) {
    const cuda::Gemm::Weight plain{kOut, kIn, w_.data()};
    const cuda::Gemm::Weight fp8{kOut, kIn, q_.data(), scales_.data()};
    gemm_->Run(GetParam() ? fp8 : plain, {rows, x_.data(), /*scales=*/nullptr, origin}, y_.data());
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  // Our kernels in a product whose algorithm is known.
  int64_t NumKernels(int64_t rows) {
    Run(rows);
    const int64_t before = cuda_emulation::NumKernelsRun();
    Run(rows);
    return cuda_emulation::NumKernelsRun() - before;
  }
  // The largest error of a product's elements, whose sums have terms of about 1.
  double Error(int64_t rows) const {
    const std::vector<float> got = y_.Read();
    const std::vector<uint8_t> q = q_.Read();
    const std::vector<float> scales = scales_.Read();
    double error = 0;
    for (int64_t i = 0; i < rows * kOut; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < kIn; ++k) {
        const auto at = static_cast<size_t>(i % kOut * kIn + k);
        const float w =
            GetParam() ? E4m3(q[at]) * scales[static_cast<size_t>(i % kOut)] : w_host_[at];
        sum += static_cast<double>(x_host_[static_cast<size_t>(i / kOut * kIn + k)]) * w;
      }
      error = std::max(error, std::abs(got[static_cast<size_t>(i)] - sum));
    }
    return error;
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::Gemm> gemm_;
  std::vector<float> w_host_, x_host_;
  DeviceArray<BF16> w_{kOut * kIn}, x_{kMost * kIn};
  DeviceArray<uint8_t> q_{kOut * kIn};
  DeviceArray<float> scales_{kOut}, y_{kMost * kOut};
};

TEST_P(FewRowsTest, OurKernelMultipliesWhereItIsFaster) {
  Start(/*deterministic=*/false);
  for (const int64_t rows : {1, 2, 16, 9, 24, 64}) {
    EXPECT_EQ(NumKernels(rows), 1) << rows;
    EXPECT_LT(Error(rows), 1e-4) << rows << ": x itself is multiplied";
  }
  const int64_t quantizing = GetParam() ? 1 : 0;
  EXPECT_EQ(NumKernels(kMost), quantizing);
  EXPECT_LT(Error(kMost), GetParam() ? 1.0 : 1e-4);
}

// cuBLASLt's, which refuses it for what is not e4m3.
TEST_P(FewRowsTest, SumsOfE4m3AreFast) {
  for (const bool has_scale_vectors : {false, true}) {
    cuda_emulation::SetDevice({.has_fp8_scale_vectors = has_scale_vectors});
    Start(/*deterministic=*/false);
    const int64_t before = cuda_emulation::NumFastProducts();
    Run(kMost);
    EXPECT_EQ(cuda_emulation::NumFastProducts() > before, GetParam());
  }
}

TEST_P(FewRowsTest, ItIsRecorded) {
  Start(/*deterministic=*/false);
  Run(4);
  const std::vector<float> want = y_.Read();
  y_.Write(std::vector<float>(kMost * kOut, NAN));
  const cuda::Gemm::Weight plain{kOut, kIn, w_.data()};
  const cuda::Gemm::Weight fp8{kOut, kIn, q_.data(), scales_.data()};
  RecordAndReplay(stream_, [&] {
    gemm_->Run(GetParam() ? fp8 : plain, {4, x_.data()}, y_.data());
  });
  const std::vector<float> got = y_.Read();
  const auto rows = [](const std::vector<float>& y) {
    return std::vector<float>(y.begin(), y.begin() + 4 * kOut);
  };
  EXPECT_EQ(rows(got), rows(want));
}

// In a step they begin before the kernel ahead of them has ended.
TEST_P(FewRowsTest, TheyAreMeasuredBehindAKernelThatTheyOverlap) {
  for (const auto origin : {cuda::Gemm::Origin::kOther, cuda::Gemm::Origin::kAttention}) {
    Start(/*deterministic=*/false, /*overlaps=*/true);
    const int64_t before = cuda_emulation::NumKernelsBegunEarly();
    Run(1, origin);
    EXPECT_GE(cuda_emulation::NumKernelsBegunEarly() - before, cuda::NumSkinnyVariants(1));
    EXPECT_LT(Error(1), 1e-4);
  }
}

TEST_P(FewRowsTest, WeightsAreFetchedEarlyAsFarAsWhatMakesTheirRowsTakes) {
  constexpr int64_t kOutputs = 16, kLong = 16384;
  using Origin = cuda::Gemm::Origin;
  cuda_emulation::SetDevice({.product_seconds = 0.1});  // as rows are long
  Start(/*deterministic=*/false);
  ASSERT_TRUE(gemm_->Prepare(kOutputs, kLong, GetParam()).ok());
  if (GetParam()) gemm_->QuantizeIn(MemoryForRows(1, kLong));
  const DeviceArray<BF16> x(std::vector<BF16>(kLong, ToBF16(1.0f)));
  const DeviceArray<uint16_t> w(std::vector<uint16_t>(kOutputs * kLong, 0));
  const DeviceArray<float> scales(std::vector<float>(kOutputs, 1.0f));
  const auto fetched = [&](Origin origin) {
    const auto run = [&] {
      gemm_->Run({kOutputs, kLong, w.data(), GetParam() ? scales.data() : nullptr},
                 {1, x.data(), /*scales=*/nullptr, origin}, y_.data());
      EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    };
    run();
    const int64_t before = cuda_emulation::NumPrefetchedBytes();
    run();
    return (cuda_emulation::NumPrefetchedBytes() - before) / kOutputs;
  };
  EXPECT_EQ(fetched(Origin::kAttention), 4096);
  EXPECT_EQ(fetched(Origin::kOther), GetParam() ? 2048 : 0);
  EXPECT_EQ(fetched(Origin::kSilu), GetParam() ? 2048 : 1024);
}

// Whose order of additions depends on how many rows there are.
TEST_P(FewRowsTest, NotWhereRowsMustNotDependOnOthers) {
  Start(/*deterministic=*/true);
  EXPECT_EQ(NumKernels(1), GetParam() ? 1 : 0) << "besides quantizing x";
}

// ---- rounded to bf16 ----

// Sums are f32 throughout, and rounded once, or once more where scales come after; and the order of
// additions may be another.
TEST_P(FewRowsTest, ResultsAreRoundedWhereAsked) {
  constexpr int64_t kOuts = kMost * kOut;
  const int64_t before = cuda_emulation::NumProductsAddedInOutput();
  for (const bool has_scale_vectors : {false, true}) {
    const double rounding = GetParam() && !has_scale_vectors ? 0x1p-7 : 0x1p-8;
    cuda_emulation::SetDevice({.has_fp8_scale_vectors = has_scale_vectors});
    Start(/*deterministic=*/false);
    Run(kMost);
    const std::vector<float> want = y_.Read();
    const DeviceArray<BF16> rounded(std::vector<BF16>(kOuts, BF16{0x7fff}));
    const cuda::Gemm::Weight plain{kOut, kIn, w_.data()};
    const cuda::Gemm::Weight fp8{kOut, kIn, q_.data(), scales_.data()};
    for (const int64_t rows :
         {kMost - 1, kMost}) {  // our own kernels take the fewer, and do not round
      gemm_->Run(GetParam() ? fp8 : plain, {rows, x_.data()}, rounded.data(), DType::kBF16);
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      const std::vector<float> got = ToFloats(rounded.Read());
      for (int64_t i = 0; i < kOuts; ++i) {
        const auto at = static_cast<size_t>(i);
        if (i >= rows * kOut) {
          ASSERT_TRUE(std::isnan(got[at])) << i;
        } else {
          ASSERT_NEAR(got[at], want[at], 1.01 * rounding * std::abs(want[at]) + 1e-4) << i;
        }
      }
    }
    Run(kMost);
    EXPECT_EQ(y_.Read(), want) << "others are as before";
  }
  EXPECT_EQ(cuda_emulation::NumProductsAddedInOutput(), before) << "not even tried";
}

// Four to six products to each algorithm, and the one that was asked for.
TEST_P(FewRowsTest, MoreAlgorithmsAreMeasuredOfLongRowsInE4m3) {
  cuda_emulation::SetDevice({.algorithms_of_a_kind = 40});
  constexpr int64_t kWidth = 16, kRows = 2048;
  Start(/*deterministic=*/false);
  ASSERT_TRUE(gemm_->Prepare(kWidth, kWidth, GetParam()).ok());
  const DeviceArray<BF16> x(std::vector<BF16>(kRows * kWidth, ToBF16(1.0f)));
  const DeviceArray<float> x_scales(std::vector<float>(kRows, 1.0f));  // quantized already
  const DeviceArray<float> y(std::vector<float>(kRows * kWidth, NAN));
  const cuda::Gemm::Weight plain{kWidth, kWidth, w_.data()};
  const cuda::Gemm::Weight fp8{kWidth, kWidth, q_.data(), scales_.data()};
  const auto num_measured = [&](int64_t rows) {
    const int64_t before = cuda_emulation::NumProducts();
    gemm_->Run(GetParam() ? fp8 : plain, {rows, x.data(), GetParam() ? x_scales.data() : nullptr},
               y.data());
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return cuda_emulation::NumProducts() - before - 1;
  };
  const auto expect = [&](int64_t rows, int64_t algorithms) {
    const int64_t measured = num_measured(rows);
    EXPECT_GE(measured, 4 * algorithms) << rows;
    EXPECT_LE(measured, 6 * algorithms) << rows;
  };
  expect(1024, 8);
  expect(1025, GetParam() ? 31 : 8);  // one of the 32 that are found does not work
}

// Steps of powers of two bring those between, and so does any other step, back to the last power.
TEST_F(GemmTest, SizesBetweenAreLearntWithTheLargest) {
  Start();
  ExpectProduct(64);
  ExpectProduct(100);
  for (const int64_t rows : {40, 56, 72, 96}) {
    const int64_t before = cuda_emulation::NumKernelsRun();
    Run(rows);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cuda_emulation::NumKernelsRun(), before) << rows << ": the cache was emptied";
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, FewRowsTest, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "fp8" : "bf16"); });

}  // namespace
}  // namespace lockstep::testing
