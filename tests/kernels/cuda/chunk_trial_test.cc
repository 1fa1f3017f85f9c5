// Attention by wgmma beside mma.sync's, on the emulation and, over batches as large as those of
// serving, on GPUs that have it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <tuple>

#include "kernels/cuda/chunk_kernels.h"
#include "tests/kernels/cuda/device_array.h"

namespace lockstep::cuda {
namespace {

using ::testing::ElementsAre;

class ChunkTrialTest : public ::testing::TestWithParam<std::tuple<int, DType>> {};

TEST_P(ChunkTrialTest, FindsNothingWrong) {
  const auto [head_dim, dtype] = GetParam();
#ifdef LOCKSTEP_CUDA_EMULATION
  const TensorMapEncoder encode = &cuTensorMapEncodeTiled;
  const std::vector<std::pair<int, int>> sizes = {{59, 330}};  // chunk, context
#else
  cudaDeviceProp properties = {};
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  const TensorMapEncoder encode = FindTensorMapEncoder(properties);
  if (encode == nullptr) {
    std::printf("%s has no wgmma, or its driver no tensor maps\n", properties.name);
    return;
  }
  const std::vector<std::pair<int, int>> sizes = {{59, 330}, {1024, 3000}, {2048, 2048}};
#endif
  constexpr int64_t kBytes = int64_t{64} << 20;
  const testing::DeviceArray<uint8_t> memory(kBytes);
  const TrialGround ground = {encode, {.data = memory.data(), .bytes = kBytes}, nullptr};
  for (const auto& [chunk, context] : sizes) {
    const ChunkTrial trial = {.kv_dtype = dtype,
                              .head_dim = head_dim,
                              .num_kv_heads = 2,
                              .chunk = chunk,
                              .context = context,
                              .repeats = 1};
    const auto verdict = TryWgmma(trial, ground);
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_EQ(verdict->wrong, "") << chunk << " of " << context;
    EXPECT_GT(verdict->wgmma_flops_per_s, 0);
    EXPECT_GT(verdict->mma_flops_per_s, 0);
  }
  const auto others = CheckOtherBlocks(dtype, head_dim, ground);
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_EQ(others->wrong, "");
  EXPECT_THAT(others->right, ElementsAre(8, 32, 64));
}

INSTANTIATE_TEST_SUITE_P(HeadsAndTypes, ChunkTrialTest,
                         ::testing::Combine(::testing::Values(64, 128),
                                            ::testing::Values(DType::kBF16, DType::kF16)));

}  // namespace
}  // namespace lockstep::cuda
