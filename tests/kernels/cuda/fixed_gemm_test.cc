// Products with `deterministic`: a row's bits depend on that row alone, whatever the emulated
// cuBLASLt (tests/support/cuda_emulation/cublasLt.h) offers, and many rows are multiplied at once
// where an algorithm allows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kOut = 48, kIn = 96;
constexpr int64_t kMostRows = 600;

struct Numbers {
  DType dtype;
  bool fp8 = false;
};

class FixedGemmTest : public ::testing::TestWithParam<Numbers> {
 protected:
  FixedGemmTest() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    Random random(7);
    w_.Write(Narrow(random.Normals(kOut * kIn)));
    x_.Write(Narrow(random.Normals(kMostRows * kIn)));
    EXPECT_EQ(cuda::LaunchQuantizeFp8(w_.data(), GetParam().dtype, kOut, kIn,
                                      {w_fp8_.data(), w_scales_.data()}, nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  ~FixedGemmTest() override {
    gemm_.reset();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    cuda_emulation::SetDevice({});
    EXPECT_EQ(cuda_emulation::TakeFailure(), "");
  }
  // As the products' type.
  static std::vector<uint8_t> Narrow(const std::vector<float>& numbers) {
    std::vector<uint8_t> bytes(numbers.size() * DTypeBytes(GetParam().dtype));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float number = numbers[i];
      const uint16_t bits =
          GetParam().dtype == DType::kF16 ? ToF16(number).bits : ToBF16(number).bits;
      const bool is_f32 = GetParam().dtype == DType::kF32;
      std::memcpy(bytes.data() + i * DTypeBytes(GetParam().dtype),
                  is_f32 ? static_cast<const void*>(&number) : &bits, DTypeBytes(GetParam().dtype));
    }
    return bytes;
  }
  void Start(const cuda_emulation::Device& device = {}) {
    cuda_emulation::SetDevice(device);
    gemm_.reset();
    notices_.clear();
    auto gemm = cuda::Gemm::Create(
        stream_, {.compute = GetParam().dtype,
                  .deterministic = true,
                  .notice = [&](const std::string& notice) { notices_.push_back(notice); }});
    ASSERT_TRUE(gemm.ok()) << gemm.status();
    gemm_ = *std::move(gemm);
    ASSERT_TRUE(gemm_->Prepare(kOut, kIn, GetParam().fp8).ok());
    if (GetParam().fp8) gemm_->QuantizeIn(MemoryForRows(kMostRows, kIn));
  }
  cuda::Gemm::Weight Weight() const {
    if (GetParam().fp8) return {kOut, kIn, w_fp8_.data(), w_scales_.data()};
    return {kOut, kIn, w_.data()};
  }
  void Issue(const cuda::Gemm::Weight& w, int64_t first, int64_t rows, float* y) {
    const int64_t row_bytes = kIn * DTypeBytes(GetParam().dtype);
    gemm_->Run(w, {rows, x_.data() + first * row_bytes}, y);
  }
  // Rows first, first + 1, ... of the input; that nothing behind the result is written.
  std::vector<float> Run(const cuda::Gemm::Weight& w, int64_t first, int64_t rows) {
    y_.Write(std::vector<float>(kMostRows * kOut, NAN));
    Issue(w, first, rows, y_.data());
    return Result(rows);
  }
  std::vector<float> Result(int64_t rows) {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    std::vector<float> y = y_.Read();
    for (auto i = static_cast<size_t>(rows * kOut); i < y.size(); ++i) {
      EXPECT_TRUE(std::isnan(y[i])) << i;
    }
    y.resize(static_cast<size_t>(rows * kOut));
    return y;
  }
  std::vector<float> Run(int64_t first, int64_t rows) { return Run(Weight(), first, rows); }
  std::vector<float> OneByOne() {
    for (int64_t row = 0; row < kMostRows; ++row) Issue(Weight(), row, 1, y_.data() + row * kOut);
    return Result(kMostRows);
  }
  static std::vector<float> Rows(const std::vector<float>& y, int64_t first, int64_t rows) {
    return {y.begin() + first * kOut, y.begin() + (first + rows) * kOut};
  }
  // cuBLASLt's in a product whose rows have come before.
  int64_t NumProducts(int64_t rows) {
    Run(0, rows);
    const int64_t before = cuda_emulation::NumProducts();
    Run(0, rows);
    return cuda_emulation::NumProducts() - before;
  }

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<cuda::Gemm> gemm_;
  std::vector<std::string> notices_;
  DeviceArray<uint8_t> w_{kOut * kIn * DTypeBytes(GetParam().dtype)};
  DeviceArray<uint8_t> x_{kMostRows * kIn * DTypeBytes(GetParam().dtype)};
  DeviceArray<uint8_t> w_fp8_{kOut * kIn};
  DeviceArray<float> w_scales_{kOut}, y_{kMostRows * kOut};
};

// Over all that may give a row other bits, in one order of sizes and in another.
TEST_P(FixedGemmTest, ARowsBitsDependOnThatRowAlone) {
  for (const cuda_emulation::Device& device :
       std::vector<cuda_emulation::Device>{{},
                                           {.has_fp8_scale_vectors = false},
                                           {.prefers_whole_tiles = true},
                                           {.slices_few_columns = true},
                                           {.adds_by_place = true},
                                           {.slices_few_columns = true, .adds_by_place = true},
                                           {.wide_columns = 65},
                                           {.wide_columns = 256}}) {
    Start(device);
    const std::vector<float> want = OneByOne();
    std::vector<int64_t> sizes = {1, 2, 3, 17, 63, 64, 65, 100, 128, 129, 256, 257, 300, 512, 600};
    for (const bool largest_first : {false, true}) {
      Start(device);
      if (largest_first) std::reverse(sizes.begin(), sizes.end());
      for (const int64_t rows : sizes) {
        for (const int64_t first : {int64_t{0}, kMostRows - rows}) {
          ASSERT_EQ(Run(first, rows), Rows(want, first, rows))
              << rows << " rows, places " << device.adds_by_place << ", sliced "
              << device.slices_few_columns << ", wide " << device.wide_columns;
        }
      }
    }
  }
}

TEST_P(FixedGemmTest, RowsAreMultipliedAtOnce) {
  for (const bool slices_few_columns : {false, true}) {
    Start({.slices_few_columns = slices_few_columns});
    for (const int64_t rows : {1, 7, 40, 64, 100, 256, 512})
      EXPECT_EQ(NumProducts(rows), 1) << rows;
    EXPECT_EQ(NumProducts(600), 2);  // 512 and 88
    EXPECT_THAT(notices_, IsEmpty());
  }
}

TEST_P(FixedGemmTest, WhatHasOtherBitsIsMultipliedInTilesWithANotice) {
  Start({.wide_columns = 65});
  EXPECT_EQ(NumProducts(64), 1);
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_EQ(NumProducts(512), 8);
  EXPECT_EQ(NumProducts(600), 10);
  EXPECT_EQ(NumProducts(100), 2);
  EXPECT_THAT(notices_, ElementsAre(AllOf(HasSubstr("no algorithm has the same bits"),
                                          HasSubstr("in pieces of 64 rows"))));
  Start({.wide_columns = 256});
  EXPECT_EQ(NumProducts(512), 4);  // of 128
}

TEST_P(FixedGemmTest, WithoutMemoryToTryTheyAreInTiles) {
  Start();
  const std::vector<float> want = Run(0, 512);
  Start();
  cuda_emulation::SetDevice(
      {.memory_bytes = cuda_emulation::AllocatedBytes() + 3 * kMostRows * kIn});
  ASSERT_EQ(Run(0, 60), Rows(want, 0, 60));
  cuda_emulation::SetDevice({.memory_bytes = cuda_emulation::AllocatedBytes()});
  if (GetParam().fp8) return;  // quantized, rows take memory themselves
  EXPECT_EQ(Run(0, 512), want);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("no memory to try 512 rows")));
}

// Trying leaves none behind, and what is known is not tried again.
TEST_P(FixedGemmTest, ItIsTriedOnce) {
  Start();
  Run(0, 512);
  const int64_t bytes = cuda_emulation::AllocatedBytes();
  const int64_t kernels = cuda_emulation::NumKernelsRun();
  Run(0, 512);
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), bytes);
  EXPECT_EQ(cuda_emulation::NumKernelsRun() - kernels, GetParam().fp8 ? 1 : 0) << "quantizing";
}

// With zeros all orders are the same: other weights of the shape tell.
TEST_P(FixedGemmTest, WeightsThatTellNothingDecideNothing) {
  Start();
  const std::vector<float> want = OneByOne();
  const DeviceArray<uint8_t> zeros(Narrow(std::vector<float>(kOut * kIn)));
  const cuda::Gemm::Weight nothing{kOut, kIn, zeros.data(),
                                   GetParam().fp8 ? w_scales_.data() : nullptr};
  for (const cuda_emulation::Device& device : std::vector<cuda_emulation::Device>{
           {.slices_few_columns = true}, {.adds_by_place = true}, {.wide_columns = 128}}) {
    Start(device);
    EXPECT_EQ(Run(nothing, 0, 600), std::vector<float>(600 * kOut, 0.0f));
    EXPECT_EQ(Run(0, 600), want);
  }
}

TEST_P(FixedGemmTest, SizesThatHaveNotComeAreRecordedWithTheSameBits) {
  Start();
  const std::vector<float> want = Run(0, 600);
  Start();
  Run(0, 40);
  for (const int64_t rows : {1, 40, 64, 100, 600}) {
    if (GetParam().fp8 && rows > 40) continue;  // their memory is taken when they first come
    y_.Write(std::vector<float>(kMostRows * kOut, NAN));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    Issue(Weight(), 0, rows, y_.data());
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    EXPECT_EQ(Result(rows), Rows(want, 0, rows));
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, FixedGemmTest,
                         ::testing::Values(Numbers{DType::kF32}, Numbers{DType::kBF16},
                                           Numbers{DType::kF16}, Numbers{DType::kBF16, true}),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param.dtype)) +
                                  (info.param.fp8 ? "_fp8" : "");
                         });

}  // namespace
}  // namespace lockstep::testing
