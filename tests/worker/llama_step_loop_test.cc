// The whole rank but its wire, on real checkpoints: greedy tokens and prompt log-probabilities
// equal the reference's.
#include "tests/worker/llama_step_loop.h"

#include "kernels/cpu_backend_options.h"
#include "tests/parallel/run_ranks.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

class LlamaStepLoopTest : public ::testing::TestWithParam<Case> {};

TEST_P(LlamaStepLoopTest, EqualsTheReference) {
  const Case& layout = GetParam();
  const std::filesystem::path model = SharedAssets() / "models" / layout.model;
  SKIP_WITHOUT_ASSET(model);
  const std::vector<Golden> cases = ReadGolden(model);
  ASSERT_FALSE(cases.empty());
  const std::vector<engine::StepPlan> plans = PlansFor(cases, layout.chunk);
  std::vector<engine::StepResult> results;
  RunRanks(layout.tp, layout.pp, [&](int rank, RankGroups& groups) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeCpuBackend({}));
    return RunRank(model, layout, rank, *backend, groups, plans, results);
  });
  ExpectGolden(results, cases);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LlamaStepLoopTest,
    ::testing::Values(Case{"stories260K", 1, 1, 3}, Case{"stories260K", 2, 1, 512},
                      Case{"stories260K", 4, 1, 2}, Case{"stories260K", 1, 5, 512},
                      Case{"stories260K", 2, 2, 1}, Case{"tiny-llama31", 1, 1, 512},
                      Case{"tiny-llama31", 2, 2, 100}),
    [](const auto& info) {
      std::string name = info.param.model;
      std::erase(name, '-');
      return name + "_tp" + std::to_string(info.param.tp) + "_pp" + std::to_string(info.param.pp);
    });

}  // namespace
}  // namespace lockstep::testing
