// What a backend counts on of a GPU's memory.
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

using cuda::CudaBackend;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGpu = 3000 * kMiB;

class CudaMemoryTest : public ::testing::Test {
 protected:
  CudaMemoryTest() { cuda_emulation::SetDevice({.memory_bytes = kGpu}); }
  ~CudaMemoryTest() override { cuda_emulation::SetDevice({}); }
  static std::unique_ptr<CudaBackend> Backend() {
    return CudaBackend::Create({.memory_fraction = 0.9}).value();
  }
};

TEST_F(CudaMemoryTest, ItsShareLessWhatItHolds) {
  const auto backend = Backend();
  EXPECT_EQ(backend->AvailableBytes(), 2700 * kMiB);
  const auto held = backend->Allocate(100 * kMiB);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(backend->AvailableBytes(), 2600 * kMiB);
}

// What others leave is not all its own: recorded steps and libraries will want of it, too.
TEST_F(CudaMemoryTest, WhereOthersHoldMemorySomeIsSpared) {
  const auto backend = Backend();
  void* others = nullptr;
  ASSERT_EQ(cudaMalloc(&others, 1000 * kMiB), cudaSuccess);
  const int64_t free = kGpu - cuda_emulation::AllocatedBytes();
  EXPECT_EQ(backend->AvailableBytes(), free - 150 * kMiB);
  void* all = nullptr;
  ASSERT_EQ(cudaMalloc(&all, static_cast<size_t>(free - 100 * kMiB)), cudaSuccess);
  EXPECT_EQ(backend->AvailableBytes(), 0);
  EXPECT_EQ(cudaFree(others), cudaSuccess);
  EXPECT_EQ(cudaFree(all), cudaSuccess);
}

}  // namespace
}  // namespace lockstep::testing
