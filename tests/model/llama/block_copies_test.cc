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
  void PrefetchKv(const KvBlockCopies& copies) override {
    notes.push_back("prefetch");
    CpuBackend::RestoreKv(copies);
  }
  void AwaitPrefetches() override { notes.push_back("await prefetches"); }
  void Synchronize() override { notes.push_back("synchronize"); }
  std::vector<std::string> notes;
};

class BlockCopiesTest : public ::testing::Test {
 protected:
  BlockCopiesTest() {
    EXPECT_TRUE(cache_.Allocate(backend_, kNumBlocks).ok());
    EXPECT_TRUE(cache_.AllocateHostBlocks(backend_, kNumHostBlocks, nullptr).ok());
  }
  using Copies = std::vector<BlockCopy>;
  using Blocks = std::vector<int32_t>;
  // What it does. Whatever is written is granted.
  std::vector<std::string> Copy(const Copies& offloaded, const Copies& restored,
                                const Blocks& written, const Copies& prefetched = {},
                                Blocks granted = {}) {
    backend_.notes.clear();
    granted.insert(granted.end(), written.begin(), written.end());
    for (const BlockCopy& copy : restored) granted.push_back(copy.block);
    EXPECT_EQ(cache_.Copy(backend_, {offloaded, restored, prefetched, granted, written}),
              absl::OkStatus());
    return backend_.notes;
  }
  std::vector<std::string> Prefetch(const Copies& prefetched) {
    return Copy({}, {}, {}, prefetched);
  }
  std::vector<std::string> Grant(const Blocks& granted) { return Copy({}, {}, {}, {}, granted); }
  std::string Refusal(const StepBlocks& blocks) {
    backend_.notes.clear();
    const absl::Status status = cache_.Copy(backend_, blocks);
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

TEST_F(BlockCopiesTest, CopiesFromTheHostRunBesideStepsUntilOneHasTheirBlocks) {
  EXPECT_THAT(Prefetch({{1, 5}, {2, 6}}), ElementsAre("prefetch"));
  EXPECT_THAT(Copy({}, {}, {3}), IsEmpty());
  EXPECT_THAT(Prefetch({{4, 7}}), ElementsAre("prefetch"));
  EXPECT_THAT(Grant({8, 2}), ElementsAre("await prefetches"));
  EXPECT_THAT(Grant({1, 4}), IsEmpty()) << "they were waited for";
  Prefetch({{1, 5}});
  EXPECT_THAT(Copy({}, {}, {1}), ElementsAre("await prefetches")) << "or it writes to them";
  Prefetch({{1, 5}});
  EXPECT_THAT(Copy({}, {{1, 9}}, {}), ElementsAre("await prefetches", "restore"));
}

TEST_F(BlockCopiesTest, OrUntilWhatTheyReadIsReplaced) {
  Prefetch({{1, 5}});
  EXPECT_THAT(Copy({{2, 6}}, {{3, 5}}, {}), ElementsAre("offload", "restore"));
  EXPECT_THAT(Copy({{2, 5}}, {}, {}), ElementsAre("await prefetches", "offload"));
  Prefetch({{7, 8}});
  EXPECT_THAT(Copy({{7, 9}}, {}, {}), ElementsAre("await prefetches", "offload"));
}

TEST_F(BlockCopiesTest, WhatIsPrefetchedWaitsForCopiesToTheHost) {
  EXPECT_THAT(Copy({{1, 5}}, {}, {}, {{2, 6}}), ElementsAre("offload", "prefetch"));
  EXPECT_THAT(Prefetch({{3, 5}}), ElementsAre("await", "prefetch")) << "it has the block's copy";
  Copy({{1, 7}}, {}, {});
  EXPECT_THAT(Prefetch({{1, 8}}), ElementsAre("await", "prefetch")) << "over the block";
  EXPECT_THAT(Copy({{4, 9}}, {}, {}, {{4, 10}}), ElementsAre("offload", "await", "prefetch"));
}

TEST_F(BlockCopiesTest, BlocksThatThereAreNotAreRefused) {
  const auto refusal = [this](const Copies& offloaded, const Copies& restored,
                              const Copies& prefetched = {}, const Blocks& granted = {}) {
    return Refusal({offloaded, restored, prefetched, granted, granted});
  };
  EXPECT_THAT(refusal({{10, 0}}, {}), HasSubstr("between block 10 of 10 and block 0 of the host's "
                                                "20"));
  EXPECT_THAT(refusal({{0, 20}}, {}), HasSubstr("block 20 of the host's 20"));
  EXPECT_THAT(refusal({{0, 0}}, {{-1, 0}}), HasSubstr("block -1 of 10"));
  EXPECT_THAT(refusal({}, {{0, -1}}), HasSubstr("block -1 of the host's 20"));
  EXPECT_THAT(refusal({}, {{0, 0}}, {{1, 20}}), HasSubstr("block 20 of the host's 20"));
  EXPECT_THAT(refusal({{0, 0}}, {}, {}, {3, 10}), HasSubstr("block 10 is granted, there are 10"));
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
  const Copies copies = {{0, 0}};
  EXPECT_THAT(Refusal({copies, {}, {}, {}, {}}), HasSubstr("block 0 of the host's 0"));
}

TEST_F(BlockCopiesTest, MoreBytesThanCanBeCountedAreRefused) {
  EXPECT_EQ(cache_.AllocateHostBlocks(backend_, int64_t{1} << 40, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
