// Steps whose kernels overlap all the way through, products being our own: the numbers of those
// whose kernels begin one after another. On the emulation of CUDA, where each begins as early as it
// may.
#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/accelerator.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "parallel/device_communicators.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/parallel/run_ranks.h"
#include "tests/support/cuda_emulation/emulation.h"

extern "C" const lockstep::AcceleratorPlugin* lockstep_plugin();

namespace lockstep::testing {
namespace {

struct OverlappingLayout {
  int tp = 1;
  int pp = 1;
  bool divided = false;     // even a step of one token, of which the last ranks have none
  bool keep_steps = false;  // recorded and replayed
};

class CudaOverlappingStepsTest : public ::testing::TestWithParam<OverlappingLayout> {
 protected:
  static constexpr int kBlockSize = 2;
  static constexpr int32_t kNumBlocks = 6;
  static constexpr int32_t kNumSteps = kNumBlocks * kBlockSize;

  void TearDown() override {
    cuda_emulation::SetDevice({});
    EXPECT_EQ(cuda_emulation::TakeFailure(), "");
  }

  // Of the last stage's first rank, which has half of them where there are two, after each step.
  Outcome Run(bool overlap_kernels) const {
    const auto [tp, pp, divided, keep_steps] = GetParam();
    // Measured against that any product of ours is faster, and cuBLASLt's do not overlap.
    cuda_emulation::SetDevice({.num_devices = tp * pp,
                               .product_seconds = overlap_kernels ? 0.002 : 0.0,
                               .l2_bytes = 1 << 10});
    Outcome outcome;
    RunRanks(tp, pp, [&](int rank, RankGroups& host) {
      return RunRank(rank, host, overlap_kernels, outcome);
    });
    return outcome;
  }

 private:
  // Every other one begins a block, whose number comes with it.
  static StepBatch Decode(int32_t position) {
    const int32_t index = position / kBlockSize;
    const int32_t block = kNumBlocks - 1 - index;
    StepBatch batch;
    batch.token_ids = {1 + position * 37 % 500};
    batch.positions = {position};
    batch.slot_mapping = {int64_t{block} * kBlockSize + position % kBlockSize};
    batch.query_starts = {0, 1};
    batch.context_lens = {position + 1};
    batch.table_rows = {0};
    if (position % kBlockSize == 0) batch.new_blocks = {{0, index, block}};
    batch.logits_rows = {0};
    return batch;
  }

  absl::Status RunRank(int rank, RankGroups& host, bool overlap_kernels, Outcome& outcome) const {
    const OverlappingLayout& layout = GetParam();
    ASSIGN_OR_RETURN(
        const auto backend,
        cuda::CudaBackend::Create(
            {.device = rank, .keep_steps = layout.keep_steps, .overlap_kernels = overlap_kernels}));
    ASSIGN_OR_RETURN(
        RankGroups groups,
        MakeDeviceGroups(lockstep_plugin()->accelerator->communicators(), *backend, host,
                         {.max_hidden_states = model_.checkpoint().config().hidden_size,
                          .notice = [](const std::string& text) { ADD_FAILURE() << text; }}));
    if (layout.divided) groups.most_undivided_bytes = 0;
    StageOptions options;
    options.limits = {.max_batched_tokens = 1,
                      .max_num_seqs = 1,
                      .max_model_len = kNumSteps,
                      .block_size = kBlockSize};
    ASSIGN_OR_RETURN(const auto stage, LlamaStage::Load(model_.checkpoint(),
                                                        *ProcessGrid::Create(layout.tp, layout.pp),
                                                        rank, *backend, groups, options, nullptr));
    RETURN_IF_ERROR(stage->AllocateKvCache(kNumBlocks));
    for (int32_t position = 0; position < kNumSteps; ++position) {
      RETURN_IF_ERROR(stage->Forward(Decode(position)));
      // Nobody waits, and so drives the others' devices, before all have issued the step.
      RETURN_IF_ERROR(host.tp->Barrier());
      RETURN_IF_ERROR(host.pp->Barrier());
      if (!stage->is_last()) continue;
      ASSIGN_OR_RETURN(const float* const logits, stage->Logits(0, 1));
      if (host.tp->rank() > 0) continue;
      outcome.logits.emplace_back(logits, logits + stage->shape().vocab.size());
    }
    backend->Synchronize();
    return host.pp->Barrier();
  }

  static ModelConfig Config() {
    ModelConfig config = SmallConfig(/*num_kv_heads=*/2);
    config.num_layers = 2;
    config.intermediate_size = 64;
    config.vocab_size = 500;
    return config;
  }
  const TemporaryModel model_{Config(), DType::kBF16};
};

TEST_P(CudaOverlappingStepsTest, LogitsAreThoseOfKernelsOneAfterAnother) {
  const Outcome want = Run(/*overlap_kernels=*/false);
  const int64_t before = cuda_emulation::NumKernelsBegunEarly();
  const Outcome got = Run(/*overlap_kernels=*/true);
  // At least a layer's norms, products, RoPE, attention and activation.
  EXPECT_GT(cuda_emulation::NumKernelsBegunEarly() - before, 6 * kNumSteps) << "little was tried";
  ASSERT_EQ(want.logits.size(), kNumSteps);
  ASSERT_EQ(got.logits.size(), kNumSteps);
  for (size_t i = 0; i < want.logits.size(); ++i) {
    // Products of ours add up in other orders.
    EXPECT_LT(Distance({{{}, {got.logits[i]}}}, {{{}, {want.logits[i]}}}), 0.02) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaOverlappingStepsTest,
                         ::testing::Values(OverlappingLayout{1, 1},
                                           OverlappingLayout{2, 2, false, true},
                                           OverlappingLayout{2, 2, true}),
                         [](const auto& info) {
                           return absl::StrCat("Tp", info.param.tp, "Pp", info.param.pp,
                                               info.param.divided ? "Divided" : "",
                                               info.param.keep_steps ? "Recorded" : "");
                         });

}  // namespace
}  // namespace lockstep::testing
