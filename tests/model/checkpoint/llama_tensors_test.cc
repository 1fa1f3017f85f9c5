#include "model/checkpoint/llama_tensors.h"

#include <fstream>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/shard_plan.h"
#include "tests/model/checkpoint/model_directory.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDirectory;

// Hidden size 4, one layer, two heads, one KV head, vocabulary 6.
ModelConfig SmallConfig(bool tied) {
  ModelConfig config = *ParseModelConfig(R"({"model_type":"llama","hidden_size":4,
      "intermediate_size":8,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,
      "vocab_size":6})");
  config.tie_word_embeddings = tied;
  return config;
}

// A directory whose tensors are those given, zero everywhere.
std::unique_ptr<Checkpoint> OpenTensors(const TempDirectory& directory, const ModelConfig& config,
                                        const std::vector<TensorSpec>& specs) {
  const auto plan = PlanShards(specs, DType::kF32, int64_t{1} << 40);
  directory.Write("config.json", ModelConfigJson(config));
  directory.Write(
      "model.safetensors",
      plan[0].header +
          std::string(plan[0].file_bytes - static_cast<int64_t>(plan[0].header.size()), '\0'));
  auto checkpoint = Checkpoint::Open(directory.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

TEST(LlamaTensors, CompleteOnesPass) {
  for (const bool tied : {false, true}) {
    const TempDirectory directory;
    const ModelConfig config = SmallConfig(tied);
    EXPECT_TRUE(CheckLlamaTensors(*OpenTensors(directory, config, LlamaTensors(config))).ok());
  }
}

TEST(LlamaTensors, EachMissingTensorIsNamed) {
  const ModelConfig config = SmallConfig(/*tied=*/false);
  const std::vector<TensorSpec> all = LlamaTensors(config);
  EXPECT_EQ(all.size(), 12u);
  for (size_t i = 0; i < all.size(); ++i) {
    const TempDirectory directory;
    std::vector<TensorSpec> some = all;
    some.erase(some.begin() + static_cast<int64_t>(i));
    const absl::Status status = CheckLlamaTensors(*OpenTensors(directory, config, some));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", all[i].name, "\"")));
  }
}

TEST(LlamaTensors, AQuantizedHeadIsNamed) {
  const ModelConfig config = SmallConfig(/*tied=*/false);
  for (const char* name : {"lm_head.weight_packed", "lm_head.qweight"}) {
    const TempDirectory directory;
    std::vector<TensorSpec> specs = LlamaTensors(config);
    specs.back() = {name, {6, 1}};
    const absl::Status status = CheckLlamaTensors(*OpenTensors(directory, config, specs));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("\"", name, "\": a quantized LM head is not supported")));
  }
}

TEST(LlamaTensors, EachWrongShapeIsNamed) {
  const ModelConfig config = SmallConfig(/*tied=*/false);
  const std::vector<TensorSpec> all = LlamaTensors(config);
  for (size_t i = 0; i < all.size(); ++i) {
    const TempDirectory directory;
    std::vector<TensorSpec> some = all;
    some[i].shape.front() += 1;
    const absl::Status status = CheckLlamaTensors(*OpenTensors(directory, config, some));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("\"", all[i].name, "\"")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("config.json makes it ["));
  }
}

TEST(LlamaTensors, HarmlessExtrasAreNotUnknown) {
  const TempDirectory directory;
  const ModelConfig config = SmallConfig(/*tied=*/true);
  std::vector<TensorSpec> specs = LlamaTensors(config);
  specs.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}});
  specs.push_back({"lm_head.weight", {6, 4}});
  specs.push_back({"adapter.weight", {2}});
  const auto checkpoint = OpenTensors(directory, config, specs);
  EXPECT_TRUE(CheckLlamaTensors(*checkpoint).ok());
  EXPECT_THAT(UnknownTensors(*checkpoint), ElementsAre("adapter.weight"));
}

TEST(LlamaTensors, ATiedHeadThatDiffersFromTheEmbeddingIsUnknown) {
  const ModelConfig config = SmallConfig(/*tied=*/true);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7, 4}, {4, 6}, {24}}) {
    const TempDirectory directory;
    std::vector<TensorSpec> specs = LlamaTensors(config);
    specs.push_back({"lm_head.weight", shape});
    EXPECT_THAT(UnknownTensors(*OpenTensors(directory, config, specs)),
                ElementsAre("lm_head.weight"));
  }
  const TempDirectory directory;
  std::vector<TensorSpec> specs = LlamaTensors(config);
  specs.push_back({"lm_head.weight", {6, 4}});
  const auto checkpoint = OpenTensors(directory, config, specs);
  EXPECT_THAT(UnknownTensors(*checkpoint), IsEmpty());
  const TensorInfo& head = **checkpoint->Find("lm_head.weight");
  std::fstream file(directory / "model.safetensors", std::ios::in | std::ios::out);
  file.seekp(head.file_offset + head.num_bytes - 1) << 'x' << std::flush;
  EXPECT_THAT(UnknownTensors(*checkpoint), ElementsAre("lm_head.weight"));
  EXPECT_THAT(UnknownTensorText("lm_head.weight"), HasSubstr("from which it differs"));
  EXPECT_EQ(UnknownTensorText("adapter"), "\"adapter\"");
}

TEST(LlamaTensors, ALayerBeyondTheConfigsIsRefused) {
  const TempDirectory directory;
  const ModelConfig config = SmallConfig(/*tied=*/true);
  std::vector<TensorSpec> specs = LlamaTensors(config);
  specs.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", {1}});  // holds no weights
  EXPECT_TRUE(CheckLlamaTensors(*OpenTensors(directory, config, specs)).ok());
  specs.push_back({"model.layers.1.mlp.up_proj.weight", {8, 4}});
  const absl::Status status = CheckLlamaTensors(*OpenTensors(directory, config, specs));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\"model.layers.1.mlp.up_proj.weight\" is of layer 1, but config.json says "
                        "num_hidden_layers: 1"));
}

TEST(LlamaTensors, CountTheParameters) {
  for (const bool tied : {false, true}) {
    const ModelConfig config = SmallConfig(tied);
    int64_t count = 0;
    for (const TensorSpec& spec : LlamaTensors(config)) {
      count +=
          std::accumulate(spec.shape.begin(), spec.shape.end(), int64_t{1}, std::multiplies<>());
    }
    EXPECT_EQ(count, config.num_parameters());
  }
}

}  // namespace
}  // namespace lockstep
