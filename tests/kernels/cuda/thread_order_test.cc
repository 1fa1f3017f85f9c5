// Kernels must not depend on the order in which threads and blocks take turns: where one does, a
// barrier is missing. The emulation of CUDA can choose that order.
#include <string>
#include <vector>

#include "tests/kernels/cuda/attention_on_device.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

// 0 ascending, 1 descending, others random.
constexpr uint64_t kOrders[] = {0, 1, 2, 3, 4};

class CudaThreadOrder : public ::testing::TestWithParam<DType> {
 protected:
  ~CudaThreadOrder() override { cuda_emulation::SetThreadOrder(0); }

  void ExpectSameInAnyOrder(const PagedShape& shape, const std::vector<SequenceChunk>& chunks,
                            bool wgmma = false) {
    PagedWorld world(shape, chunks, 46);
    world.WriteBatch();
    const AttentionOnDevice device(world);
    for (const int64_t split_tokens : {64, 1024}) {
      const AttentionOnDevice::Options options = {.split_tokens = split_tokens, .wgmma = wgmma};
      cuda_emulation::SetThreadOrder(0);
      const std::vector<float> want = device.Attend(options);
      for (const uint64_t order : kOrders) {
        cuda_emulation::SetThreadOrder(order);
        ASSERT_TRUE(SameBits(device.Attend(options), want)) << "order " << order;
      }
    }
  }
};

TEST_P(CudaThreadOrder, AttentionOfDecodesIsTheSame) {
  for (const int head_dim : {32, 64, 128}) {
    ExpectSameInAnyOrder({8, 2, head_dim, 16, GetParam()}, {{300, 1}, {64, 1}});
  }
}

TEST_P(CudaThreadOrder, AttentionOfChunksIsTheSame) {
  for (const int head_dim : {32, 64, 128}) {
    ExpectSameInAnyOrder({8, 2, head_dim, 16, GetParam()}, {{300, 5}, {0, 40}});
  }
}

INSTANTIATE_TEST_SUITE_P(Cache, CudaThreadOrder,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// Copies arrive in any order, too; tiles are more than there is room for at once, and all warps
// have rows.
TEST_F(CudaThreadOrder, AttentionOfChunksByWgmmaIsTheSame) {
  for (const int head_dim : {64, 128}) {
    const DType dtype = head_dim == 64 ? DType::kF16 : DType::kBF16;
    ExpectSameInAnyOrder({8, 2, head_dim, 16, dtype}, {{700, 33}, {0, 40}}, true);
  }
}

TEST_F(CudaThreadOrder, AddRmsNormIsTheSame) {
  constexpr int64_t kHidden = 4100;
  Random random(47);
  const std::vector<float> x = random.Normals(2 * kHidden);
  const DeviceArray<float> weight(random.Normals(kHidden));
  std::vector<float> want;
  for (const uint64_t order : kOrders) {
    cuda_emulation::SetThreadOrder(order);
    const DeviceArray<float> residual(x);
    const DeviceArray<float> out(2 * kHidden);
    ASSERT_EQ(cuda::LaunchAddRmsNorm(
                  {residual.data(), nullptr, weight.data(), 1e-5f, 2, kHidden, out.data()},
                  DType::kF32, nullptr),
              cudaSuccess);
    const std::vector<float> got = out.Read();
    if (want.empty()) want = got;
    EXPECT_TRUE(SameBits(got, want)) << "order " << order;
  }
}

TEST_F(CudaThreadOrder, SummariesAndChoicesAreTheSame) {
  constexpr int64_t kWidth = 9001;
  constexpr int kSlices = 2;
  Random random(48);
  const DeviceArray<float> logits(random.Normals(kWidth));
  const int64_t half = LogitsSummaryBytes(kSlices, 1);
  const DeviceArray<LogitsJob> jobs({{.num_largest = 1, .inverse_temperature = 1.0f},
                                     {.num_largest = 256,
                                      .inverse_temperature = 0.3f,
                                      .num_biases = 3,
                                      .num_penalties = 2,
                                      .num_masks = 1,
                                      .repetition_penalty = 1.3f,
                                      .uncounted = 0,
                                      .out_offset = static_cast<int32_t>(half)}});
  const DeviceArray<LogitAdjustment> adjustments(
      {{0, 9.0f}, {5, -1.0f}, {9000, 9.0f}, {5, 1.0f}, {0, 2.0f}, {9000, 0.0f}});
  const DeviceArray<ChosenToken> before({{9, 0.0f}});
  // Of two ranks that summarise the same.
  const DeviceArray<TokenChoiceJob> choices({{.num_largest = 1, .place = 1},
                                             {.summary = static_cast<int32_t>(half),
                                              .num_largest = 256,
                                              .inverse_temperature = 0.3f,
                                              .top_k = 200,
                                              .top_p = 0.9f,
                                              .seed = 3}});
  std::vector<uint8_t> want;
  std::vector<uint8_t> want_chosen;
  for (const uint64_t order : kOrders) {
    cuda_emulation::SetThreadOrder(order);
    const DeviceArray<uint8_t> workspace(LogitsWorkspaceBytes(kWidth / 2 + 1, kSlices, 2, 256));
    const DeviceArray<uint8_t> out(half + LogitsSummaryBytes(kSlices, 256));
    ASSERT_EQ(cuda::LaunchSummarizeLogits({.logits = logits.data(),
                                           .width = kWidth,
                                           .slice_width = kWidth / 2 + 1,
                                           .num_slices = kSlices,
                                           .jobs = jobs.data(),
                                           .num_jobs = 2,
                                           .max_largest = 256,
                                           .adjustments = adjustments.data(),
                                           .chosen = before.data(),
                                           .workspace = workspace.data(),
                                           .out = reinterpret_cast<std::byte*>(out.data())},
                                          nullptr),
              cudaSuccess);
    const std::vector<uint8_t> got = out.Read();
    if (want.empty()) want = got;
    EXPECT_TRUE(got == want) << "order " << order;

    const DeviceArray<uint8_t> chosen(2 * sizeof(ChosenToken));
    ASSERT_EQ(cuda::LaunchChooseTokens({.summaries = reinterpret_cast<const std::byte*>(out.data()),
                                        .num_ranks = 2,
                                        .num_slices = kSlices,
                                        .part_width = kWidth,
                                        .vocab_size = 2 * kWidth,
                                        .jobs = choices.data(),
                                        .num_jobs = 2,
                                        .chosen = reinterpret_cast<ChosenToken*>(chosen.data())},
                                       nullptr),
              cudaSuccess);
    const std::vector<uint8_t> got_chosen = chosen.Read();
    if (want_chosen.empty()) want_chosen = got_chosen;
    EXPECT_TRUE(got_chosen == want_chosen) << "order " << order;
  }
}

}  // namespace
}  // namespace lockstep::testing
