// The measurement of gpu_bench, on the emulation of CUDA, whose events tell the time at which work
// is done.
#include "tests/gpu/step_gaps.h"

#include "gtest/gtest.h"
#include "parallel/process_grid.h"
#include "tests/support/assets.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::bench {
namespace {

TEST(StepGaps, AreAPartOfTheStep) {
  const std::filesystem::path model = testing::SharedAssets() / "models" / "stories260K";
  SKIP_WITHOUT_ASSET(model);
  const auto marking = MarkingBackend::Create({.compute = DType::kF32}).value();
  MarkingBackend& backend = *marking;
  RankGroups groups = {.tp = MakeSelfCommunicator(), .pp = MakeSelfCommunicator()};
  StageOptions options;
  options.limits = {.max_batched_tokens = 8, .max_num_seqs = 4, .max_model_len = 64};
  const auto checkpoint = Checkpoint::Open(model).value();
  const auto stage = LlamaStage::Load(*checkpoint, *ProcessGrid::Create(1, 1), 0, backend, groups,
                                      options, nullptr)
                         .value();
  ASSERT_TRUE(stage->AllocateKvCache(16).ok());
  for (const int64_t seqs : {1, 4}) {
    const auto gaps = MeasureStepGaps(*stage, backend, groups,
                                      {.num_seqs = seqs,
                                       .context = 20,
                                       .new_tokens = 1,
                                       .block_size = options.limits.block_size,
                                       .vocab_size = checkpoint->config().vocab_size},
                                      10);
    ASSERT_TRUE(gaps.ok()) << gaps.status();
    EXPECT_GT(gaps->step_seconds, 0.0);
    EXPECT_GE(gaps->between_share, 0.0);
    EXPECT_GT(gaps->copies_share, 0.0);
    EXPECT_GE(gaps->median_share, gaps->copies_share);
    EXPECT_LE(gaps->median_share, gaps->p95_share);
    EXPECT_LT(gaps->p95_share, 1.0);
    EXPECT_GE(gaps->late_share, 0.0);
    EXPECT_LE(gaps->late_share, 1.0);
  }
  EXPECT_EQ(cuda_emulation::TakeFailure(), "");
}

TEST(MarkingBackend, MarksCopiesWhileItIsAsked) {
  const auto marking = MarkingBackend::Create({.compute = DType::kF32}).value();
  MarkingBackend& backend = *marking;
  const auto memory = backend.Allocate(64).value();
  std::vector<std::byte> host(64);
  std::vector<MarkedCopy> copies;
  backend.CopyToDevice(memory.data(), host.data(), 64);
  EXPECT_TRUE(copies.empty());
  backend.MarkCopiesIn(&copies);
  backend.CopyToDevice(memory.data(), host.data(), 64);
  backend.StartCopyToHost(host.data(), memory.data(), 0);  // nothing
  backend.CopyToHost(host.data(), memory.data(), 64);
  ASSERT_EQ(copies.size(), 2u);
  backend.Synchronize();
  EXPECT_GE(copies[0].end.SecondsSince(copies[0].begin), 0.0);
  EXPECT_GE(copies[1].begin.SecondsSince(copies[0].end), 0.0);
  backend.MarkCopiesIn(nullptr);
  backend.CopyToDevice(memory.data(), host.data(), 64);
  EXPECT_EQ(copies.size(), 2u);
}

}  // namespace
}  // namespace lockstep::bench
