// Token ids, logits and log-probabilities of an independent implementation (golden.json).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tests/model/llama/stage_driver.h"

namespace lockstep::testing {

struct GoldenCase {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy_tokens;
  std::vector<float> last_prompt_logits;
  std::vector<float> prompt_logprob_of_next;
};

std::vector<GoldenCase> ReadGoldenFile(const std::filesystem::path& file);
// The directory's golden.json.
std::vector<GoldenCase> ReadGolden(const std::filesystem::path& directory);

// The same tokens; numbers within a part of what is wanted, or of 1.
void ExpectGolden(const Outcome& outcome, const GoldenCase& golden, double tolerance = 1e-3);

}  // namespace lockstep::testing
