// Whole generations by several processes with a GPU each, or one for all: the tokens of one
// process. On the emulation of CUDA and NCCL, and on real GPUs (tests/gpu/run.sh).
#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/accelerator.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "parallel/device_communicators.h"
#include "parallel/shared_gpu.h"
#include "tests/model/llama/golden.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/parallel/local_ranks.h"
#include "tests/support/assets.h"

extern "C" const lockstep::AcceleratorPlugin* lockstep_plugin();

namespace lockstep::testing {
namespace {

constexpr int64_t kMaxBatchedTokens = 64;
constexpr int64_t kHiddenSize = 64;  // of stories260K

using ::testing::Each;

std::filesystem::path ModelDirectory() { return SharedAssets() / "models" / "stories260K"; }

// Those short enough for the emulation.
std::vector<GoldenCase> Cases() {
  std::vector<GoldenCase> cases;
  for (GoldenCase& golden : ReadGolden(ModelDirectory())) {
    if (golden.prompt.size() > 40) continue;
    golden.greedy_tokens.resize(std::min<size_t>(golden.greedy_tokens.size(), 16));
    cases.push_back(std::move(golden));
  }
  return cases;
}

absl::StatusOr<RankGroups> OverDevices(Backend& backend, RankGroups& host) {
  return MakeDeviceGroups(lockstep_plugin()->accelerator->communicators(), backend, host,
                          {.max_hidden_states = kMaxBatchedTokens * kHiddenSize,
                           .notice = [](const std::string& text) { ADD_FAILURE() << text; }});
}

DriveOptions Options(const LocalRank& rank, bool deterministic, bool stages_lie_apart) {
  int num_devices = 0;
  EXPECT_EQ(cudaGetDeviceCount(&num_devices), cudaSuccess);
  if (num_devices < rank.size) LetRanksShareAGpu();
  DriveOptions options;
  options.make_backend = [=]() -> std::unique_ptr<Backend> {
    auto backend = cuda::CudaBackend::Create({.device = rank.rank % num_devices,
                                              .compute = DType::kF32,
                                              .deterministic = deterministic});
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  };
  options.make_device_groups = &OverDevices;
  options.stage.weights = StageOptions::Weights::kF32;
  options.stage.limits = {
      .max_batched_tokens = kMaxBatchedTokens, .max_num_seqs = 4, .max_model_len = 80};
  options.chunk = 30;
  options.stages_lie_apart = stages_lie_apart;
  return options;
}

// argument: tp,pp,deterministic,stages_lie_apart.
absl::Status Generate(const LocalRank& rank) {
  const std::vector<std::string> layout = absl::StrSplit(rank.argument, ',');
  const ProcessGrid grid = *ProcessGrid::Create(std::stoi(layout[0]), std::stoi(layout[1]));
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(ModelDirectory()));
  const std::vector<GoldenCase> cases = Cases();
  std::vector<Request> requests;
  for (const GoldenCase& golden : cases) {
    requests.push_back({golden.prompt, static_cast<int>(golden.greedy_tokens.size())});
  }
  RankGroups host = rank.Groups(grid);
  ASSIGN_OR_RETURN(const std::vector<Outcome> outcomes,
                   DriveRank(*checkpoint, grid, rank.rank, host,
                             Options(rank, layout[2] == "1", layout[3] == "1"), requests));
  const bool has_logits = grid.stage_of(rank.rank) == grid.pp() - 1;
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(outcomes[i].greedy, cases[i].greedy_tokens);
    if (has_logits) ExpectGolden(outcomes[i], cases[i]);
  }
  return absl::OkStatus();
}

struct Layout {
  int tp;
  int pp;
  bool deterministic = false;
  bool stages_lie_apart = false;
};

class CudaRanksTest : public ::testing::TestWithParam<Layout> {};

TEST_P(CudaRanksTest, TokensAreThoseOfOneProcess) {
  SKIP_WITHOUT_ASSET(ModelDirectory());
  const auto [tp, pp, deterministic, stages_lie_apart] = GetParam();
  EXPECT_THAT(RunLocalRanks({.num_ranks = tp * pp,
                             .part = "generate",
                             .argument = absl::StrCat(tp, ",", pp, ",", deterministic ? 1 : 0, ",",
                                                      stages_lie_apart ? 1 : 0)}),
              Each(0));
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaRanksTest,
                         ::testing::Values(Layout{1, 1}, Layout{2, 1}, Layout{2, 1, true},
                                           Layout{4, 1}, Layout{1, 2}, Layout{2, 2},
                                           Layout{2, 2, false, true}, Layout{1, 3}),
                         [](const auto& info) {
                           return absl::StrCat("Tp", info.param.tp, "Pp", info.param.pp,
                                               info.param.deterministic ? "Deterministic" : "",
                                               info.param.stages_lie_apart ? "Apart" : "");
                         });

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  if (const auto status = RunIfLocalRank({{"generate", &Generate}})) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
