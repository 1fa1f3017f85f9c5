// LlamaStage against token ids, logits and log-probabilities of an independent implementation
// (golden.json).
#include <cmath>
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/model/llama/stage_driver.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

struct GoldenCase {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy_tokens;
  std::vector<float> last_prompt_logits;
  std::vector<float> prompt_logprob_of_next;
};

std::vector<GoldenCase> ReadGolden(const std::filesystem::path& directory) {
  std::ifstream file(directory / "golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<GoldenCase> cases;
  for (const auto& c : golden.at("cases")) {
    cases.push_back({c.at("prompt"), c.at("greedy_tokens"), c.at("last_prompt_logits"),
                     c.at("prompt_logprob_of_next")});
  }
  return cases;
}

float LogProbability(const std::vector<float>& logits, int32_t token) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<float>(logits[static_cast<size_t>(token)] - std::log(sum));
}

void ExpectNear(float actual, float golden, const char* what, size_t index) {
  EXPECT_NEAR(actual, golden, 1e-3f * std::max(1.0f, std::abs(golden)))
      << what << "[" << index << "]";
}

void ExpectGolden(const Outcome& outcome, const GoldenCase& golden) {
  EXPECT_EQ(outcome.greedy, golden.greedy_tokens);
  const std::vector<float>& last = outcome.logits[golden.prompt.size() - 1];
  ASSERT_EQ(last.size(), golden.last_prompt_logits.size());
  for (size_t i = 0; i < last.size(); ++i) {
    ExpectNear(last[i], golden.last_prompt_logits[i], "last_prompt_logits", i);
  }
  ASSERT_EQ(golden.prompt_logprob_of_next.size(), golden.prompt.size() - 1);
  for (size_t i = 0; i + 1 < golden.prompt.size(); ++i) {
    ExpectNear(LogProbability(outcome.logits[i], golden.prompt[i + 1]),
               golden.prompt_logprob_of_next[i], "prompt_logprob_of_next", i);
  }
}

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
