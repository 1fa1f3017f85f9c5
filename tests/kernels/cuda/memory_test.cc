// What a backend counts on of a GPU's memory.
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

using cuda::CudaBackend;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGpu = 3000 * kMiB;
constexpr int64_t kItsOwn = 4 * kMiB;  // for rows of weights that are converted

class CudaMemoryTest : public ::testing::Test {
 protected:
  CudaMemoryTest() { cuda_emulation::SetDevice({.memory_bytes = kGpu}); }
  ~CudaMemoryTest() override { cuda_emulation::SetDevice({}); }
  static std::unique_ptr<CudaBackend> Backend() {
    return CudaBackend::Create({.memory_fraction = 0.9}).value();
  }
};

// The backend has workspaces of its own beside what it gives out.
TEST_F(CudaMemoryTest, ItsShareLessAllThatIsTaken) {
  const auto backend = Backend();
  const DeviceMemory empty = backend->Memory();
  EXPECT_EQ(empty.total_bytes, kGpu);
  EXPECT_EQ(empty.budget_bytes, 2700 * kMiB);
  EXPECT_EQ(empty.held_bytes, kItsOwn);
  EXPECT_GT(empty.other_bytes, 0);
  EXPECT_EQ(empty.left_bytes, 2700 * kMiB - kItsOwn - empty.other_bytes);
  EXPECT_EQ(backend->AvailableBytes(), empty.left_bytes);

  const auto held = backend->Allocate(100 * kMiB);
  ASSERT_TRUE(held.ok());
  void* library = nullptr;
  ASSERT_EQ(cudaMalloc(&library, 30 * kMiB), cudaSuccess);
  const DeviceMemory filled = backend->Memory();
  EXPECT_EQ(filled.held_bytes, 100 * kMiB + kItsOwn);
  EXPECT_EQ(filled.other_bytes, empty.other_bytes + 30 * kMiB);
  EXPECT_EQ(filled.left_bytes, empty.left_bytes - 130 * kMiB);
  EXPECT_EQ(cudaFree(library), cudaSuccess);
}

TEST_F(CudaMemoryTest, WhatIsTakenBeyondTheShareIsMissing) {
  const auto backend = CudaBackend::Create({.memory_fraction = 0.1}).value();
  const auto held = backend->Allocate(310 * kMiB);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(backend->Memory().left_bytes, -10 * kMiB - kItsOwn - backend->Memory().other_bytes);
  EXPECT_EQ(backend->AvailableBytes(), 0);
}

TEST_F(CudaMemoryTest, WhatOtherProgramsHoldIsToldApart) {
  EXPECT_EQ(Backend()->Memory().foreign_bytes, 0);
  void* few = nullptr;
  ASSERT_EQ(cudaMalloc(&few, 100 * kMiB), cudaSuccess);
  DeviceMemory memory = Backend()->Memory();
  EXPECT_EQ(memory.foreign_bytes, 100 * kMiB);
  EXPECT_FALSE(memory.is_limited_by_others());
  void* more = nullptr;
  ASSERT_EQ(cudaMalloc(&more, 1000 * kMiB), cudaSuccess);
  memory = Backend()->Memory();
  EXPECT_EQ(memory.foreign_bytes, 1100 * kMiB);
  EXPECT_TRUE(memory.is_limited_by_others());
  EXPECT_EQ(cudaFree(few), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
}

// What others leave is not all its own.
TEST_F(CudaMemoryTest, WhereOthersHoldMemorySomeIsSpared) {
  const auto backend = CudaBackend::Create({.memory_fraction = 0.9, .is_shared = true}).value();
  EXPECT_EQ(backend->AvailableBytes(), 2700 * kMiB - kItsOwn);
  void* others = nullptr;
  ASSERT_EQ(cudaMalloc(&others, 1000 * kMiB), cudaSuccess);
  EXPECT_EQ(backend->Memory().other_bytes, 0);
  EXPECT_EQ(backend->Memory().foreign_bytes, 0) << "they are of the same job";
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
