// LlamaStage against an independent implementation.
#include <algorithm>

#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "tests/model/llama/golden.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  void Run(const std::function<std::unique_ptr<Backend>()>& make_backend, size_t longest_prompt) {
    const std::filesystem::path directory = SharedAssets() / "models" / GetParam();
    SKIP_WITHOUT_ASSET(directory);
    const auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    std::vector<GoldenCase> cases;
    std::vector<Request> requests;
    for (GoldenCase& golden : ReadGolden(directory)) {
      if (golden.prompt.size() > longest_prompt) continue;
      requests.push_back({golden.prompt, static_cast<int>(golden.greedy_tokens.size())});
      cases.push_back(std::move(golden));
    }
    ASSERT_FALSE(cases.empty());
    DriveOptions options;
    options.make_backend = make_backend;
    options.stage.limits = {.max_batched_tokens = 256, .max_num_seqs = 8, .max_model_len = 2300};
    options.chunk = 200;
    const auto outcomes = Drive(**checkpoint, options, requests);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "prompt of " << cases[i].prompt.size() << " tokens");
      ExpectGolden((*outcomes)[i], cases[i]);
    }
  }
};

TEST_P(GoldenTest, CpuBackendComputesTheGoldenNumbers) { Run(CpuBackends(2), SIZE_MAX); }

TEST_P(GoldenTest, ReferenceBackendComputesTheGoldenNumbers) { Run(MakeReferenceBackend, 64); }

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::Values("stories260K", "tiny-llama31"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace lockstep::testing
