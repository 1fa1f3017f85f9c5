// In what order a stage copies blocks to the host and back, and what it waits for.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "model/llama/stage_kv_cache.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNumBlocks = 10;
constexpr int64_t kNumHostBlocks = 20;

class CopyNotingBackend final : public cpu::CpuBackend {
 public:
  CopyNotingBackend() : CpuBackend(**cpu::FindKernels("auto"), /*num_threads=*/1) {}
  void OffloadKv(const KvBlockCopies& copies) override {
    notes.push_back("offload");
    CpuBackend::OffloadKv(copies);
  }
  void AwaitOffloads() override { notes.push_back("await"); }
  void RestoreKv(const KvBlockCopies& copies) override {
    notes.push_back("restore");
    CpuBackend::RestoreKv(copies);
  }
  void Synchronize() override { notes.push_back("synchronize"); }
  std::vector<std::string> notes;
};

class BlockCopiesTest : public ::testing::Test {
 protected:
  BlockCopiesTest() {
    EXPECT_TRUE(cache_.Allocate(backend_, kNumBlocks).ok());
    EXPECT_TRUE(cache_.AllocateHostBlocks(backend_, kNumHostBlocks, nullptr).ok());
  }
  // What it does.
  std::vector<std::string> Copy(const std::vector<BlockCopy>& offloaded,
                                const std::vector<BlockCopy>& restored,
                                const std::vector<int32_t>& written) {
    backend_.notes.clear();
    EXPECT_EQ(cache_.Copy(backend_, offloaded, restored, written), absl::OkStatus());
    return backend_.notes;
  }
  std::string Refusal(const std::vector<BlockCopy>& offloaded,
                      const std::vector<BlockCopy>& restored) {
    backend_.notes.clear();
    const absl::Status status = cache_.Copy(backend_, offloaded, restored, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(backend_.notes, IsEmpty());
    return std::string(status.message());
  }
  static StageKvCache Describe() {
    const TemporaryModel model(SmallConfig(/*num_kv_heads=*/4), DType::kF32);
    return *StageKvCache::Describe(
        model.checkpoint(),
        *MakeStageShape(model.checkpoint().config(), *ProcessGrid::Create(1, 1), 0),
        /*block_size=*/4, DType::kF32);
  }

  CopyNotingBackend backend_;
  StageKvCache cache_ = Describe();
};

TEST_F(BlockCopiesTest, CopiesToTheHostRunBesideSteps) {
  EXPECT_THAT(Copy({{1, 5}}, {{2, 6}}, {2, 3}), ElementsAre("offload", "restore"));
  EXPECT_THAT(Copy({}, {}, {4}), IsEmpty());
  EXPECT_THAT(Copy({{4, 7}}, {}, {8}), ElementsAre("offload"));
}

TEST_F(BlockCopiesTest, UntilOneHasTheirBlocks) {
  EXPECT_THAT(Copy({{1, 5}}, {{2, 6}}, {3, 1}), ElementsAre("offload", "await", "restore"));
  EXPECT_THAT(Copy({}, {}, {1}), IsEmpty()) << "it was waited for";
  Copy({{1, 5}}, {}, {});
  Copy({{3, 8}}, {}, {});
  EXPECT_THAT(Copy({{2, 6}}, {}, {1}), ElementsAre("await", "offload"));
  EXPECT_THAT(Copy({}, {}, {3}), IsEmpty());
  EXPECT_THAT(Copy({}, {{2, 9}}, {}), ElementsAre("await", "restore"));
}

TEST_F(BlockCopiesTest, OrTheirCopies) {
  EXPECT_THAT(Copy({{1, 5}}, {{2, 5}}, {}), ElementsAre("offload", "await", "restore"));
  EXPECT_THAT(Copy({{1, 5}}, {{2, 6}}, {}), ElementsAre("offload", "restore"));
  EXPECT_THAT(Copy({}, {{3, 5}}, {}), ElementsAre("await", "restore"));
}

TEST_F(BlockCopiesTest, BlocksThatThereAreNotAreRefused) {
  EXPECT_THAT(Refusal({{10, 0}}, {}), HasSubstr("between block 10 of 10 and block 0 of the host's "
                                                "20"));
  EXPECT_THAT(Refusal({{0, 20}}, {}), HasSubstr("block 20 of the host's 20"));
  EXPECT_THAT(Refusal({{0, 0}}, {{-1, 0}}), HasSubstr("block -1 of 10"));
  EXPECT_THAT(Refusal({}, {{0, -1}}), HasSubstr("block -1 of the host's 20"));
}

// Blocks come back, of all layers, wherever they were.
TEST_F(BlockCopiesTest, WhatComesBackIsWhatWent) {
  const int64_t block_floats = cache_.block_bytes() / int64_t{sizeof(float)};
  const auto num_layers = static_cast<size_t>(SmallConfig(4).num_layers);
  const int64_t piece = block_floats / (2 * static_cast<int64_t>(num_layers));
  const auto each = [&](int32_t block, const auto& body) {
    for (size_t layer = 0; layer < num_layers; ++layer) {
      body(static_cast<float*>(cache_.layer(layer).k) + block * piece, 2 * layer);
      body(static_cast<float*>(cache_.layer(layer).v) + block * piece, 2 * layer + 1);
    }
  };
  each(7, [&](float* at, size_t number) { std::fill_n(at, piece, 1.0f + number); });
  Copy({{7, 19}}, {}, {});
  each(7, [&](float* at, size_t) { std::fill_n(at, piece, -1.0f); });
  Copy({}, {{9, 19}}, {});
  each(9, [&](const float* at, size_t number) {
    EXPECT_EQ(std::count(at, at + piece, 1.0f + number), piece) << number;
  });
  each(8, [&](const float* at, size_t) { EXPECT_EQ(std::count(at, at + piece, 0.0f), piece); });
}

TEST_F(BlockCopiesTest, MemoryIsKeptUntilCopiesAreDone) {
  backend_.notes.clear();
  EXPECT_TRUE(cache_.AllocateHostBlocks(backend_, 0, nullptr).ok());
  EXPECT_THAT(backend_.notes, ElementsAre("synchronize"));
  EXPECT_EQ(cache_.num_host_blocks(), 0);
  EXPECT_THAT(Refusal({{0, 0}}, {}), HasSubstr("block 0 of the host's 0"));
}

TEST_F(BlockCopiesTest, MoreBytesThanCanBeCountedAreRefused) {
  EXPECT_EQ(cache_.AllocateHostBlocks(backend_, int64_t{1} << 40, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
