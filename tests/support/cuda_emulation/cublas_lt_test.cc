// The emulated cuBLASLt multiplies, and keeps its users to what they promised.
#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::cuda_emulation {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kM = 5, kN = 3, kK = 70;

float Value(int64_t i) { return static_cast<float>(i * 31 % 13 - 6); }
uint16_t Bf16(float value) { return ToBF16(value).bits; }
uint16_t F16Bits(float value) { return ToF16(value).bits; }

// D [m, n] = A^T [m, k] B [k, n], all column-major: y = x W^T of row-major x, W, y.
class CublasLt : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    const int32_t transposed = CUBLAS_OP_T;
    ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                             sizeof(transposed)),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    Layouts(CUDA_R_16BF, CUDA_R_32F);
    ASSERT_EQ(cudaMalloc(&a_, (kM * kK + 1) * 4), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&b_, kN * kK * 4), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&d_, kM * kN * 4), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&workspace_, 4096), cudaSuccess);
    Fill<uint16_t>(&Bf16);
  }
  void TearDown() override {
    for (const cublasLtMatrixLayout_t layout : {a_layout_, b_layout_, d_layout_}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatmulDescDestroy(desc_);
    cublasLtDestroy(handle_);
    for (void* memory : {a_, b_, d_, workspace_}) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(TakeFailure(), "");
  }
  void Layouts(cudaDataType in, cudaDataType out) {
    for (const cublasLtMatrixLayout_t layout : {a_layout_, b_layout_, d_layout_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    cublasLtMatrixLayoutCreate(&a_layout_, in, kK, kM, kK);
    cublasLtMatrixLayoutCreate(&b_layout_, in, kK, kN, kK);
    cublasLtMatrixLayoutCreate(&d_layout_, out, kM, kN, kM);
  }
  template <typename T>
  void Fill(T (*convert)(float)) {
    for (int64_t i = 0; i < kM * kK; ++i) static_cast<T*>(a_)[i] = convert(Value(i));
    for (int64_t i = 0; i < kN * kK; ++i) static_cast<T*>(b_)[i] = convert(Value(i + 500));
  }
  // Those that are a success. The last one is refused when it is used.
  std::vector<cublasLtMatmulHeuristicResult_t> Algorithms(uint64_t workspace_bytes) {
    cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace_bytes, sizeof(workspace_bytes));
    std::vector<cublasLtMatmulHeuristicResult_t> results(8);
    int num_found = 0;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, desc_, a_layout_, b_layout_, d_layout_,
                                             d_layout_, preference_, 8, results.data(), &num_found),
              CUBLAS_STATUS_SUCCESS);
    results.resize(num_found);
    EXPECT_EQ(std::erase_if(results, [](auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; }), 1u);
    return results;
  }
  cublasStatus_t Multiply(const cublasLtMatmulAlgo_t* algo, size_t workspace_bytes,
                          int64_t a_offset_bytes = 0) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, desc_, &one, static_cast<char*>(a_) + a_offset_bytes, a_layout_,
                          b_, b_layout_, &zero, d_, d_layout_, d_, d_layout_, algo, workspace_,
                          workspace_bytes, nullptr);
  }
  void ExpectProduct() {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t m = 0; m < kM; ++m) {
        float sum = 0;
        for (int64_t k = 0; k < kK; ++k) sum += Value(m * kK + k) * Value(n * kK + k + 500);
        EXPECT_EQ(static_cast<float*>(d_)[n * kM + m], sum) << m << ", " << n;
      }
    }
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatrixLayout_t a_layout_ = nullptr, b_layout_ = nullptr, d_layout_ = nullptr;
  void *a_ = nullptr, *b_ = nullptr, *d_ = nullptr, *workspace_ = nullptr;
};

TEST_F(CublasLt, EveryAlgorithmMultiplies) {
  const auto algorithms = Algorithms(4096);
  EXPECT_EQ(algorithms.size(), 5u);
  EXPECT_EQ(Algorithms(0).size(), 4u) << "without workspace there is no split-K";
  for (const auto& found : algorithms) {
    if (&found == &algorithms.back()) break;
    ASSERT_EQ(cudaMemset(d_, 0xff, kM * kN * 4), cudaSuccess);
    ASSERT_EQ(Multiply(&found.algo, found.workspaceSize), CUBLAS_STATUS_SUCCESS);
    ExpectProduct();
  }
}

TEST_F(CublasLt, F16IsMultipliedToo) {
  Layouts(CUDA_R_16F, CUDA_R_32F);
  Fill<uint16_t>(&F16Bits);
  ASSERT_EQ(Multiply(&Algorithms(0)[0].algo, 0), CUBLAS_STATUS_SUCCESS);
  ExpectProduct();
}

TEST_F(CublasLt, WorkWaitsForItsTurn) {
  ASSERT_EQ(Multiply(nullptr, 0), CUBLAS_STATUS_SUCCESS);
  EXPECT_NE(static_cast<float*>(d_)[0], static_cast<float*>(d_)[0]) << "NaN until waited for";
  ExpectProduct();
}

TEST_F(CublasLt, PromisesAreKept) {
  const auto algorithms = Algorithms(4096);
  EXPECT_EQ(Multiply(&algorithms[2].algo, algorithms[2].workspaceSize - 1),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(Multiply(&algorithms[0].algo, 0, 4), CUBLAS_STATUS_INVALID_VALUE)
      << "256 bytes of alignment were promised";
  const int32_t plain = CUBLAS_OP_N;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &plain, 8),
            CUBLAS_STATUS_INVALID_VALUE)
      << "an attribute of another size";
}

TEST_F(CublasLt, AnAlgorithmMayBeRefusedAfterAll) {
  const auto algorithms = Algorithms(0);
  const cublasLtMatmulAlgo_t& last = algorithms.back().algo;
  cublasLtMatmulHeuristicResult_t checked;
  EXPECT_EQ(cublasLtMatmulAlgoCheck(handle_, desc_, a_layout_, b_layout_, d_layout_, d_layout_,
                                    &last, &checked),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Multiply(&last, 0), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
}

TEST_F(CublasLt, WhatTheHeuristicMadeNoAlgorithmOfMustNotBeUsed) {
  const cublasLtMatmulAlgo_t nothing = {};
  EXPECT_EQ(Multiply(&nothing, 0), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_THAT(TakeFailure(), HasSubstr("an algorithm nobody made"));
}

TEST_F(CublasLt, AlgorithmsMayNeedColumnsBySixteens) {
  cublasLtMatrixLayout_t wide_b = nullptr, wide_d = nullptr;
  cublasLtMatrixLayoutCreate(&wide_b, CUDA_R_16BF, kK, 16, kK);
  cublasLtMatrixLayoutCreate(&wide_d, CUDA_R_32F, kM, 16, kM);
  std::swap(b_layout_, wide_b);
  std::swap(d_layout_, wide_d);
  const cublasLtMatmulAlgo_t algo = Algorithms(0)[0].algo;
  std::swap(b_layout_, wide_b);
  std::swap(d_layout_, wide_d);
  cublasLtMatmulHeuristicResult_t checked;
  EXPECT_EQ(
      cublasLtMatmulAlgoCheck(handle_, desc_, a_layout_, wide_b, wide_d, wide_d, &algo, &checked),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulAlgoCheck(handle_, desc_, a_layout_, b_layout_, d_layout_, d_layout_,
                                    &algo, &checked),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Multiply(&algo, 0), CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtMatrixLayoutDestroy(wide_b);
  cublasLtMatrixLayoutDestroy(wide_d);
}

TEST_F(CublasLt, NothingIsLookedForWhileAThreadCaptures) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const auto look = [&] {
    cublasLtMatmulHeuristicResult_t result;
    int num_found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle_, desc_, a_layout_, b_layout_, d_layout_,
                                          d_layout_, preference_, 1, &result, &num_found);
  };
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(look(), CUBLAS_STATUS_INTERNAL_ERROR);
  std::thread([&] { EXPECT_NE(look(), CUBLAS_STATUS_INTERNAL_ERROR); }).join();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_NE(look(), CUBLAS_STATUS_INTERNAL_ERROR);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(CublasLt, ScalesByVectorNeedPointersBeforeAnythingIsLookedFor) {
  constexpr int64_t kSide = 16;
  cublasLtMatrixLayout_t in = nullptr, out = nullptr;
  cublasLtMatrixLayoutCreate(&in, CUDA_R_8F_E4M3, kSide, kSide, kSide);
  cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, kSide, kSide, kSide);
  const int32_t by_vector = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
    cublasLtMatmulDescSetAttribute(desc_, mode, &by_vector, sizeof(by_vector));
  }
  const auto look = [&] {
    cublasLtMatmulHeuristicResult_t results[2];
    int num_found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle_, desc_, in, in, out, out, preference_, 2, results,
                                          &num_found);
  };
  const auto* scales = static_cast<const float*>(workspace_);
  for (const auto pointer :
       {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER}) {
    EXPECT_EQ(look(), CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatmulDescSetAttribute(desc_, pointer, &scales, sizeof(scales));
  }
  EXPECT_EQ(look(), CUBLAS_STATUS_SUCCESS);
  cublasLtMatrixLayoutDestroy(in);
  cublasLtMatrixLayoutDestroy(out);
}

TEST_F(CublasLt, WhatIsNotEmulatedIsRefused) {
  const float one = 1, zero = 0;
  cublasLtMatrixLayout_t f16 = nullptr;  // beside bf16
  cublasLtMatrixLayoutCreate(&f16, CUDA_R_16F, kK, kM, kK);
  EXPECT_EQ(cublasLtMatmul(handle_, desc_, &one, a_, f16, b_, b_layout_, &zero, d_, d_layout_, d_,
                           d_layout_, nullptr, nullptr, 0, nullptr),
            CUBLAS_STATUS_NOT_SUPPORTED);
  cublasLtMatrixLayoutDestroy(f16);
  const uint32_t bias = CUBLASLT_EPILOGUE_BIAS;
  cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof(bias));
  EXPECT_EQ(Multiply(nullptr, 0), CUBLAS_STATUS_NOT_SUPPORTED);
}

// All finite e4m3 numbers, times one in each column.
TEST_F(CublasLt, Fp8IsScaled) {
  constexpr int64_t kSide = 16;
  const auto run = [&](bool transposed) {
    const int32_t op = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof(op));
    cublasLtMatrixLayout_t in = nullptr, out = nullptr;
    cublasLtMatrixLayoutCreate(&in, CUDA_R_8F_E4M3, kSide, kSide, kSide);
    cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, kSide, kSide, kSide);
    const float one = 1, zero = 0;
    const cublasStatus_t status = cublasLtMatmul(handle_, desc_, &one, a_, in, b_, in, &zero, d_,
                                                 out, d_, out, nullptr, nullptr, 0, nullptr);
    cublasLtMatrixLayoutDestroy(in);
    cublasLtMatrixLayoutDestroy(out);
    return status;
  };
  cudaFree(d_);
  ASSERT_EQ(cudaMalloc(&d_, kSide * kSide * 4), cudaSuccess);
  ASSERT_EQ(cudaMemset(b_, 0, kSide * kSide), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int64_t i = 0; i < kSide * kSide; ++i) {
    static_cast<uint8_t*>(a_)[i] = static_cast<uint8_t>(i % 128 == 127 ? 0 : i);
    if (i % kSide == i / kSide) static_cast<uint8_t*>(b_)[i] = 0x38;  // 1
  }
  *static_cast<float*>(workspace_) = 2.0f;
  const auto* scale = static_cast<const float*>(workspace_);
  cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale,
                                 sizeof(scale));
  EXPECT_EQ(run(false), CUBLAS_STATUS_NOT_SUPPORTED);
  ASSERT_EQ(run(true), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto result = [&](int i) { return static_cast<float*>(d_)[i % kSide * kSide + i / kSide]; };
  EXPECT_EQ(result(0x38), 2.0f);
  EXPECT_EQ(result(0x01), 2.0f / 512);    // the smallest
  EXPECT_EQ(result(0x7e), 2.0f * 448);    // the largest
  EXPECT_EQ(result(0xc4), 2.0f * -3.0f);  // -1.5 * 2
}

TEST_F(CublasLt, OperandsMustLieOnTheDevice) {
  EXPECT_EQ(Multiply(nullptr, 0, kM * kK * 4), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_THAT(TakeFailure(), HasSubstr("A is not within the device's memory"));
}

}  // namespace
}  // namespace lockstep::cuda_emulation
