#include "tests/model/llama/golden.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::testing {
namespace {

float LogProbability(const std::vector<float>& logits, int32_t token) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<float>(logits[static_cast<size_t>(token)] - std::log(sum));
}

void ExpectNear(float actual, float golden, double tolerance, const char* what, size_t index) {
  EXPECT_NEAR(actual, golden, tolerance * std::max(1.0f, std::abs(golden)))
      << what << "[" << index << "]";
}

}  // namespace

std::vector<GoldenCase> ReadGolden(const std::filesystem::path& directory) {
  return ReadGoldenFile(directory / "golden.json");
}

std::vector<GoldenCase> ReadGoldenFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<GoldenCase> cases;
  for (const auto& c : golden.at("cases")) {
    cases.push_back({c.at("prompt"), c.at("greedy_tokens"), c.at("last_prompt_logits"),
                     c.at("prompt_logprob_of_next")});
  }
  return cases;
}

void ExpectGolden(const Outcome& outcome, const GoldenCase& golden, double tolerance) {
  EXPECT_EQ(outcome.greedy, golden.greedy_tokens);
  const std::vector<float>& last = outcome.logits[golden.prompt.size() - 1];
  ASSERT_EQ(last.size(), golden.last_prompt_logits.size());
  for (size_t i = 0; i < last.size(); ++i) {
    ExpectNear(last[i], golden.last_prompt_logits[i], tolerance, "last_prompt_logits", i);
  }
  ASSERT_EQ(golden.prompt_logprob_of_next.size(), golden.prompt.size() - 1);
  for (size_t i = 0; i + 1 < golden.prompt.size(); ++i) {
    ExpectNear(LogProbability(outcome.logits[i], golden.prompt[i + 1]),
               golden.prompt_logprob_of_next[i], tolerance, "prompt_logprob_of_next", i);
  }
}

}  // namespace lockstep::testing
