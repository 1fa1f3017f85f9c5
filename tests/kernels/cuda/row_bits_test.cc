// Products with `deterministic` over cuBLASLt as it is here: a row's bits depend on that row alone.
// What must be multiplied in tiles, and so takes longer, is told.
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/gemm.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/kernel_fixture.h"

namespace lockstep::testing {
namespace {

#ifdef LOCKSTEP_CUDA_EMULATION
constexpr int64_t kOut = 64, kIn = 128, kRows = 320;
#else
constexpr int64_t kOut = 4096, kIn = 4096, kRows = 4200;
#endif

TEST(CudaRowBits, DependOnTheRowAlone) {
  Random random(3);
  const DeviceArray<BF16> w(Narrowed<BF16>(random.Normals(kOut * kIn)));
  const DeviceArray<BF16> x(Narrowed<BF16>(random.Normals(kRows * kIn)));
  const DeviceArray<float> y(kRows * kOut);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    auto gemm = cuda::Gemm::Create(
        stream, {.compute = DType::kBF16,
                 .deterministic = true,
                 .notice = [](const std::string& notice) { std::cerr << notice << "\n"; }});
    ASSERT_TRUE(gemm.ok()) << gemm.status();
    ASSERT_TRUE((*gemm)->Prepare(kOut, kIn).ok());
    const auto run = [&](int64_t first, int64_t rows) {
      (*gemm)->Run({kOut, kIn, w.data()}, {rows, x.data() + first * kIn}, y.data() + first * kOut);
    };
    const auto result = [&] {
      EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      return y.Read();
    };
    run(0, kRows);
    const std::vector<float> want = result();
    for (const int64_t rows :
         {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{64}, int64_t{100}, int64_t{256}, kRows - 1}) {
      for (int64_t first = 0; first < kRows; first += rows)
        run(first, std::min(rows, kRows - first));
      ASSERT_TRUE(result() == want) << rows << " rows at a time";
    }
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace lockstep::testing
