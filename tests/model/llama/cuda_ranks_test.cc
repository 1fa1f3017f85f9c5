// Whole generations by several processes with a GPU each, or one for all: the tokens of one
// process; and the way of chosen tokens back to the first stage. On the emulation of CUDA and NCCL,
// and on real GPUs (tests/gpu/run.sh).
#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/sampling/token_return.h"
#include "parallel/device_communicators.h"
#include "parallel/nccl_environment.h"
#include "tests/model/llama/cuda_ranks.h"
#include "tests/model/llama/golden.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/parallel/cuda/cuda_ipc.h"
#include "tests/parallel/local_ranks.h"
#include "tests/support/assets.h"

extern "C" const lockstep::AcceleratorPlugin* lockstep_plugin();

namespace lockstep::testing {
namespace {

constexpr int64_t kMaxBatchedTokens = 64;
constexpr int64_t kHiddenSize = 64;  // of stories260K

constexpr int64_t kMaxNumSeqs = 4;

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

absl::StatusOr<RankGroups> Groups(Backend& backend, RankGroups& host) {
  return OverDevices(backend, host, kMaxBatchedTokens * kHiddenSize, kMaxNumSeqs);
}

DriveOptions Options(const LocalRank& rank, bool deterministic, bool stages_lie_apart) {
  DriveOptions options;
  options.make_backend = BackendsOf(rank, {.compute = DType::kF32, .deterministic = deterministic});
  options.make_device_groups = &Groups;
  options.stage.weights = StageOptions::Weights::kF32;
  options.stage.limits = {
      .max_batched_tokens = kMaxBatchedTokens, .max_num_seqs = kMaxNumSeqs, .max_model_len = 80};
  options.chunk = 30;
  options.stages_lie_apart = stages_lie_apart;
  return options;
}

// argument: tp,pp,deterministic,stages_lie_apart, tokens of steps that are not divided.
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
  DriveOptions options = Options(rank, layout[2] == "1", layout[3] == "1");
  options.most_undivided_bytes = std::stoi(layout[4]) * kHiddenSize * 4;
  ASSIGN_OR_RETURN(const std::vector<Outcome> outcomes,
                   DriveRank(*checkpoint, grid, rank.rank, host, options, requests));
  const bool has_logits = grid.stage_of(rank.rank) == grid.pp() - 1;
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(outcomes[i].greedy, cases[i].greedy_tokens);
    if (has_logits) ExpectGolden(outcomes[i], cases[i]);
  }
  return absl::OkStatus();
}

// The first stage's side of it, and the last one's: every step samples for two places out of four.
absl::Status ExpectTokens(Backend& backend, TokenReturn& tokens, uint64_t num_steps) {
  const auto places_of = [](uint64_t step) {
    return std::vector<int32_t>{static_cast<int32_t>(step % 4),
                                static_cast<int32_t>((step + 1) % 4)};
  };
  std::vector<int32_t> want(kMaxNumSeqs);
  for (uint64_t step = 1; step <= num_steps; ++step) {
    RETURN_IF_ERROR(tokens.Expect(step, places_of(step)));
    if (step % 3 == 0) RETURN_IF_ERROR(tokens.Await(step - 2));
    for (int i = 0; i < 2; ++i) want[places_of(step)[i]] = static_cast<int32_t>(10 * step) + i;
  }
  RETURN_IF_ERROR(tokens.Await(num_steps));
  std::vector<ChosenToken> table(kMaxNumSeqs);
  backend.CopyToHost(table.data(), tokens.table(), TokenReturn::MessageBytes(kMaxNumSeqs));
  for (size_t place = 0; place < want.size(); ++place) EXPECT_EQ(table[place].token, want[place]);
  return absl::OkStatus();
}
absl::Status SendTokens(Backend& backend, TokenReturn& tokens, uint64_t num_steps) {
  ASSIGN_OR_RETURN(const DeviceBuffer chosen, backend.Allocate(2 * sizeof(ChosenToken)));
  for (uint64_t step = 1; step <= num_steps; ++step) {
    const auto first = static_cast<int32_t>(10 * step);
    if (step % 4 == 0) {  // the host's
      RETURN_IF_ERROR(tokens.Send(std::vector<int32_t>{first, first + 1}));
      continue;
    }
    const ChosenToken sent[] = {{first, 0.5f}, {first + 1, 0.5f}};
    backend.CopyToDevice(chosen.data(), sent, sizeof(sent));
    RETURN_IF_ERROR(tokens.Send(chosen.as<ChosenToken>(), 2));
  }
  backend.Synchronize();
  return absl::OkStatus();
}

// argument: tp,pp. More steps than may be on their way at once.
absl::Status ReturnTokens(const LocalRank& rank) {
  constexpr uint64_t kNumSteps = 20;
  const std::vector<std::string> layout = absl::StrSplit(rank.argument, ',');
  const ProcessGrid grid = *ProcessGrid::Create(std::stoi(layout[0]), std::stoi(layout[1]));
  RankGroups host = rank.Groups(grid);
  const std::unique_ptr<Backend> backend = Options(rank, false, false).make_backend();
  ASSIGN_OR_RETURN(const RankGroups groups, Groups(*backend, host));
  const int stage = grid.stage_of(rank.rank);
  if (stage == 0 || stage == grid.pp() - 1) {
    ASSIGN_OR_RETURN(const auto tokens, TokenReturn::Create(*backend, *groups.pp, kMaxNumSeqs));
    RETURN_IF_ERROR(stage == 0 ? ExpectTokens(*backend, *tokens, kNumSteps)
                               : SendTokens(*backend, *tokens, kNumSteps));
  }
  return groups.pp->Barrier();
}

struct Layout {
  int tp;
  int pp;
  bool deterministic = false;
  bool stages_lie_apart = false;
  int most_undivided_tokens = static_cast<int>(kMaxBatchedTokens);
};

class CudaRanksTest : public ::testing::TestWithParam<Layout> {};

TEST_P(CudaRanksTest, TokensAreThoseOfOneProcess) {
  SKIP_WITHOUT_ASSET(ModelDirectory());
  const auto [tp, pp, deterministic, stages_lie_apart, most_undivided_tokens] = GetParam();
  EXPECT_THAT(RunLocalRanks(
                  {.num_ranks = tp * pp,
                   .part = "generate",
                   .argument = absl::StrCat(tp, ",", pp, ",", deterministic ? 1 : 0, ",",
                                            stages_lie_apart ? 1 : 0, ",", most_undivided_tokens)}),
              Each(0));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CudaRanksTest,
    ::testing::Values(Layout{1, 1}, Layout{2, 1}, Layout{2, 1, true}, Layout{4, 1}, Layout{1, 2},
                      Layout{2, 2}, Layout{2, 2, false, true}, Layout{1, 3},
                      Layout{2, 2, false, true, 0}),
    [](const auto& info) {
      return absl::StrCat("Tp", info.param.tp, "Pp", info.param.pp,
                          info.param.deterministic ? "Deterministic" : "",
                          info.param.stages_lie_apart ? "Apart" : "",
                          info.param.most_undivided_tokens < kMaxBatchedTokens ? "Divided" : "");
    });

TEST(CudaTokenReturn, TheFirstStageGetsWhatTheLastHasChosen) {
  for (const auto& [tp, pp] : {std::pair(1, 2), std::pair(2, 2), std::pair(1, 3)}) {
    EXPECT_THAT(
        RunLocalRanks(
            {.num_ranks = tp * pp, .part = "return", .argument = absl::StrCat(tp, ",", pp)}),
        Each(0));
  }
}

}  // namespace

std::function<std::unique_ptr<Backend>()> BackendsOf(const LocalRank& rank,
                                                     AcceleratorOptions options) {
  int num_devices = 0;
  EXPECT_EQ(cudaGetDeviceCount(&num_devices), cudaSuccess);
  LeaveRecordingsUnregistered();  // as the server
  if (num_devices < rank.size) LetRanksShareAGpu();
  options.device = rank.rank % num_devices;
  options.is_shared = num_devices < rank.size;
  return [=]() -> std::unique_ptr<Backend> {
    auto backend = cuda::CudaBackend::Create(options);
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  };
}

absl::StatusOr<RankGroups> OverDevices(Backend& backend, RankGroups& host,
                                       int64_t max_hidden_states, int64_t max_num_seqs) {
  return MakeDeviceGroups(lockstep_plugin()->accelerator->communicators(), backend, host,
                          {.max_hidden_states = max_hidden_states,
                           .bytes_back = TokenReturn::MessageBytes(max_num_seqs),
                           .notice = &TakeNotice});
}

}  // namespace lockstep::testing

int main(int argc, char** argv) {
  using namespace lockstep::testing;
  if (const auto status = RunIfLocalRank(
          {{"generate", &Generate}, {"return", &ReturnTokens}, {"narrow", &GenerateInNarrowTypes}}))
    return *status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
