// The step loop over the CUDA backend, on the emulation of CUDA, its logits summarised there.
#include "kernels/cuda/cuda_backend.h"
#include "tests/parallel/run_ranks.h"
#include "tests/support/assets.h"
#include "tests/worker/llama_step_loop.h"

namespace lockstep::testing {
namespace {

TEST(CudaStepLoop, EqualsTheReference) {
  const Case layout = {"stories260K", 1, 1, 30};
  const std::filesystem::path model = SharedAssets() / "models" / layout.model;
  SKIP_WITHOUT_ASSET(model);
  std::vector<Golden> cases = ReadGolden(model);
  std::erase_if(cases, [](const Golden& golden) { return golden.prompt.size() > 80; });
  ASSERT_FALSE(cases.empty());
  for (Golden& golden : cases) {
    golden.greedy_tokens.resize(std::min<size_t>(golden.greedy_tokens.size(), 12));
  }
  std::vector<engine::StepResult> results;
  RunRanks(1, 1, [&](int rank, RankGroups& groups) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                     cuda::CudaBackend::Create({.compute = DType::kF32}));
    return RunRank(model, layout, rank, *backend, groups, PlansFor(cases, layout.chunk), results);
  });
  ExpectGolden(results, cases);
}

}  // namespace
}  // namespace lockstep::testing
