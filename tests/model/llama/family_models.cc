#include "tests/model/llama/family_models.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "model/stable_hash.h"
#include "nlohmann/json.hpp"
#include "tests/support/read_file.h"

namespace lockstep::testing {
namespace {

// [0, 1): an element of SplitMix64's sequence that begins at the hash of the name.
float Uniform(const std::string& name, int64_t element) {
  uint64_t z = Fnv1a64(name) + (static_cast<uint64_t>(element) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<float>(z >> 40) / static_cast<float>(1 << 24);
}

float WeightOf(const WrittenTensor& tensor, int64_t element) {
  const float number = Uniform(tensor.name, element) - 0.5f;
  if (tensor.shape.size() > 1) return number * 0.5f;
  return tensor.name.ends_with(".bias") ? number * 2.0f : 1.0f + number * 0.5f;
}

}  // namespace

FamilyModel MakeFamilyModel(const std::string& name) {
  const std::filesystem::path file =
      std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "tests/model/llama/families" / (name + ".json");
  FamilyModel family;
  family.cases = ReadGoldenFile(file);
  for (const GoldenCase& golden : family.cases) {
    family.requests.push_back({golden.prompt, static_cast<int>(golden.greedy_tokens.size())});
  }
  const auto config = ParseModelConfig(nlohmann::json::parse(ReadFile(file)).at("config").dump());
  LS_CHECK(config.ok()) << config.status();
  family.model = std::make_unique<TemporaryModel>(*config, DType::kF32, WeightOf);
  family.options.stage.limits = {
      .max_batched_tokens = 64,
      .max_num_seqs = 4,
      .max_model_len = std::min<int64_t>(config->max_position_embeddings, 128)};
  family.options.chunk = 40;
  return family;
}

void ExpectGoldenNumbers(const FamilyModel& family, const DriveOptions& options) {
  const auto outcomes = Drive(family.model->checkpoint(), options, family.requests);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (size_t i = 0; i < family.cases.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << family.cases[i].prompt.size() << " tokens");
    ExpectGolden((*outcomes)[i], family.cases[i], 1e-4);
  }
}

}  // namespace lockstep::testing
