// Configurations of the families that share Llama's layers.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/llama_tensors.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/model_config.h"
#include "nlohmann/json.hpp"
#include "tests/model/checkpoint/config_documents.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::ParsedConfig;
using testing::With;
using testing::Without;

// config.json of mistralai/Mistral-7B-Instruct-v0.3, Qwen/Qwen2.5-7B-Instruct and Qwen/Qwen3-8B, as
// far as it says anything of the model.
json Mistral7B() {
  return json::parse(
      R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 32768})");
}

json Qwen25() {
  return json::parse(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
    "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
    "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 152064})");
}

json Qwen3() {
  return json::parse(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960,
    "max_window_layers": 36, "model_type": "qwen3", "num_attention_heads": 32,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");
}

std::string RefusalOf(const json& document) {
  const auto config = ParseModelConfig(document.dump());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << document;
  return std::string(config.status().message());
}

// The numbers of parameters that the models' pages give.
TEST(ModelFamily, PublishedModelsAreRead) {
  const ModelConfig mistral = ParsedConfig(Mistral7B());
  EXPECT_EQ(mistral.family, ModelFamily::kMistral);
  EXPECT_FALSE(mistral.has_qkv_bias() || mistral.has_head_norms());
  EXPECT_EQ(mistral.num_parameters(), 7'248'023'552);
  const ModelConfig qwen2 = ParsedConfig(Qwen25());
  EXPECT_EQ(qwen2.family, ModelFamily::kQwen2);
  EXPECT_TRUE(qwen2.has_qkv_bias() && !qwen2.has_head_norms());
  EXPECT_EQ(qwen2.head_dim, 128);
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_EQ(qwen2.num_parameters(), 7'615'616'512);
  const ModelConfig qwen3 = ParsedConfig(Qwen3());
  EXPECT_EQ(qwen3.family, ModelFamily::kQwen3);
  EXPECT_TRUE(!qwen3.has_qkv_bias() && qwen3.has_head_norms());
  EXPECT_EQ(qwen3.num_parameters(), 8'190'735'360);
}

TEST(ModelFamily, TensorsAreAsManyNumbersAsParameters) {
  for (const json& document :
       {Mistral7B(), Qwen25(), Qwen3(), With(Qwen25(), "tie_word_embeddings", true)}) {
    const ModelConfig config = ParsedConfig(document);
    int64_t elements = 0;
    for (const TensorSpec& spec : LlamaTensors(config)) {
      int64_t count = 1;
      for (const int64_t extent : spec.shape) count *= extent;
      elements += count;
    }
    EXPECT_EQ(elements, config.num_parameters()) << document;
    // Of one rank and of a stage's.
    const auto alone = ShardsOfLayout(config, 1, 1, DType::kBF16);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ((*alone)[0].weight_bytes, 2 * elements) << document;
  }
}

TEST(ModelFamily, WrittenConfigurationsAreReadBack) {
  for (const json& document :
       {Mistral7B(), With(Mistral7B(), "sliding_window", 4096),
        Without(Mistral7B(), "sliding_window"), Qwen25(),
        With(Qwen25(), "use_sliding_window", true), Qwen3(),
        With(With(With(Qwen3(), "use_sliding_window", true), "sliding_window", 1024),
             "max_window_layers", 1)}) {
    const ModelConfig config = ParsedConfig(document);
    const ModelConfig again = ParsedConfig(json::parse(ModelConfigJson(config)));
    EXPECT_EQ(again.family, config.family);
    EXPECT_EQ(again.sliding_window, config.sliding_window);
    EXPECT_EQ(ModelConfigJson(again), ModelConfigJson(config));
    EXPECT_EQ(again.Fingerprint(), config.Fingerprint());
  }
  json llama =
      With(With(Mistral7B(), "model_type", "llama"), "architectures", {"LlamaForCausalLM"});
  EXPECT_NE(ParsedConfig(llama).Fingerprint(), ParsedConfig(Mistral7B()).Fingerprint());
}

TEST(ModelFamily, EitherNameTellsIt) {
  EXPECT_EQ(ParsedConfig(Without(Qwen3(), "architectures")).family, ModelFamily::kQwen3);
  EXPECT_EQ(ParsedConfig(Without(Qwen3(), "model_type")).family, ModelFamily::kQwen3);
  EXPECT_THAT(RefusalOf(With(Qwen3(), "model_type", "qwen2")),
              HasSubstr(R"(architectures = ["Qwen3ForCausalLM"] is not supported; supported: )"
                        R"(["Qwen2ForCausalLM"] with model_type "qwen2")"));
  EXPECT_THAT(
      RefusalOf(With(Without(Qwen3(), "model_type"), "architectures", {"Qwen3MoeForCausalLM"})),
      HasSubstr(
          R"(supported: ["LlamaForCausalLM"], ["MistralForCausalLM"], ["Qwen2ForCausalLM"])"));
}

TEST(ModelFamily, AbsentFieldsHaveTransformersDefaults) {
  const json least = json::parse(R"({"model_type":"mistral","hidden_size":512,
    "intermediate_size":128,"num_hidden_layers":1,"num_attention_heads":32,"vocab_size":10})");
  EXPECT_EQ(ParsedConfig(least).num_kv_heads, 8);
  EXPECT_EQ(ParsedConfig(least).head_dim, 16);
  EXPECT_EQ(ParsedConfig(least).sliding_window, 4096);
  EXPECT_EQ(ParsedConfig(With(least, "sliding_window", nullptr)).max_position_embeddings, 131072);
  EXPECT_EQ(ParsedConfig(With(least, "num_key_value_heads", nullptr)).num_kv_heads, 32);
  const ModelConfig qwen2 = ParsedConfig(With(least, "model_type", "qwen2"));
  EXPECT_EQ(qwen2.num_kv_heads, 32);
  EXPECT_EQ(qwen2.head_dim, 16);
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_EQ(qwen2.sliding_window, std::nullopt);
  EXPECT_EQ(ParsedConfig(With(least, "model_type", "qwen3")).head_dim, 128);
}

// Within the window, all is seen.
TEST(ModelFamily, ContextsAreKeptToTheWindow) {
  const ModelConfig mistral = ParsedConfig(With(Mistral7B(), "sliding_window", 4096));
  EXPECT_EQ(mistral.max_position_embeddings, 4096);
  EXPECT_EQ(mistral.sliding_window, 4096);
  const ModelConfig wide = ParsedConfig(With(Mistral7B(), "sliding_window", 65536));
  EXPECT_EQ(wide.max_position_embeddings, 32768);
  EXPECT_EQ(wide.sliding_window, std::nullopt);
  json qwen = With(Qwen25(), "sliding_window", 8192);
  EXPECT_EQ(ParsedConfig(qwen).max_position_embeddings, 32768);
  qwen["use_sliding_window"] =
      true;  // of layers from max_window_layers on, of which there are none
  EXPECT_EQ(ParsedConfig(qwen).max_position_embeddings, 32768);
  qwen["max_window_layers"] = 27;
  EXPECT_EQ(ParsedConfig(qwen).max_position_embeddings, 8192);
  qwen["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(ParsedConfig(qwen).max_position_embeddings, 32768);
  qwen["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(ParsedConfig(qwen).max_position_embeddings, 8192);
  qwen["use_sliding_window"] = false;
  EXPECT_THAT(RefusalOf(qwen), HasSubstr(R"(layer_types = "sliding_attention" is not supported)"));
}

json Yarn(const std::string& field = "factor", json value = 4.0) {
  json document = Qwen3();
  document["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  document["rope_scaling"][field] = std::move(value);
  return document;
}

// As the pages of Qwen2.5 and Qwen3 tell users to add it, and as DeepSeek writes it.
TEST(ModelFamily, YarnMakesMorePositions) {
  const ModelConfig config = ParsedConfig(Yarn());
  EXPECT_EQ(config.max_position_embeddings, 131072);
  const auto& yarn = std::get<YarnRopeScaling>(*config.rope_scaling);
  EXPECT_EQ(yarn.factor, 4.0);
  EXPECT_EQ(yarn.original_max_position_embeddings, 32768);
  EXPECT_DOUBLE_EQ(yarn.attention_factor, 1.1386294361119891);
  EXPECT_EQ(yarn.beta_fast, 32.0);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_TRUE(yarn.truncate);
  const auto of = [](const json& document) {
    return std::get<YarnRopeScaling>(*ParsedConfig(document).rope_scaling);
  };
  EXPECT_EQ(of(Yarn("original_max_position_embeddings", nullptr)).original_max_position_embeddings,
            40960);
  EXPECT_EQ(of(Yarn("factor", nullptr)).factor, 1.25);
  EXPECT_EQ(of(Yarn("attention_factor", 0.75)).attention_factor, 0.75);
  json both = Yarn("mscale", 1.0);
  EXPECT_DOUBLE_EQ(of(both).attention_factor, 1.1386294361119891);
  both["rope_scaling"]["mscale_all_dim"] = 1.0;
  EXPECT_EQ(of(both).attention_factor, 1.0);
  EXPECT_FALSE(of(Yarn("truncate", false)).truncate);
  // The outer one counts.
  EXPECT_EQ(
      of(With(Yarn(), "original_max_position_embeddings", 16384)).original_max_position_embeddings,
      16384);
  for (const json& document : {Yarn(), Yarn("factor", nullptr), Yarn("truncate", false), both}) {
    const ModelConfig first = ParsedConfig(document);
    EXPECT_EQ(ModelConfigJson(ParsedConfig(json::parse(ModelConfigJson(first)))),
              ModelConfigJson(first));
  }
  EXPECT_NE(ParsedConfig(Yarn()).Fingerprint(), ParsedConfig(Yarn("beta_fast", 16)).Fingerprint());
}

TEST(ModelFamily, YarnOutOfRangeIsRefused) {
  EXPECT_THAT(RefusalOf(Yarn("factor", 0.5)), HasSubstr("rope_scaling.factor = 0.5"));
  EXPECT_THAT(RefusalOf(Yarn("factor", 1e6)), HasSubstr("is more than 134217728 positions"));
  EXPECT_THAT(RefusalOf(Yarn("beta_slow", 33)),
              HasSubstr("rope_scaling.beta_slow = 33 must not exceed beta_fast = 32"));
  EXPECT_THAT(RefusalOf(Yarn("attention_factor", 0)), HasSubstr("attention_factor = 0"));
  EXPECT_THAT(RefusalOf(Yarn("original_max_position_embeddings", 0)),
              HasSubstr("original_max_position_embeddings = 0"));
  json longer = Yarn("factor", nullptr);
  longer["original_max_position_embeddings"] = 65536;
  EXPECT_THAT(RefusalOf(longer),
              HasSubstr("original_max_position_embeddings = 65536 exceeds "
                        "max_position_embeddings = 40960 and no factor is given"));
  json loud = Yarn("factor", 1000.0);
  loud["rope_scaling"]["mscale"] = 1000.0;
  loud["rope_scaling"]["mscale_all_dim"] = 1e-9;
  loud["rope_scaling"]["original_max_position_embeddings"] = 1000;
  loud["rope_scaling"]["factor"] = 1e5;
  EXPECT_THAT(RefusalOf(loud), HasSubstr("mscale_all_dim make attention_factor 1152.29"));
  EXPECT_THAT(RefusalOf(Yarn("truncate", 1)), HasSubstr("rope_scaling.truncate = 1"));
  EXPECT_THAT(RefusalOf(With(Yarn(), "rope_theta", 1)), HasSubstr("rope_theta = 1 must exceed 1"));
}

TEST(ModelFamily, WhatIsComputedOtherwiseIsRefused) {
  EXPECT_THAT(RefusalOf(With(Qwen3(), "attention_bias", true)), HasSubstr("attention_bias = true"));
  EXPECT_THAT(RefusalOf(With(Mistral7B(), "attention_bias", true)),
              HasSubstr("attention_bias = true"));
  EXPECT_TRUE(ParsedConfig(With(Qwen25(), "attention_bias", true)).has_qkv_bias());
  EXPECT_THAT(RefusalOf(With(Mistral7B(), "sliding_window", 0)), HasSubstr("sliding_window = 0"));
  EXPECT_THAT(RefusalOf(With(Mistral7B(), "sliding_window", "4096")),
              HasSubstr(R"(sliding_window = "4096")"));
  EXPECT_THAT(RefusalOf(With(Qwen25(), "use_sliding_window", 1)),
              HasSubstr("use_sliding_window = 1"));
  EXPECT_THAT(
      RefusalOf(With(Qwen3(), "layer_types", {"linear_attention"})),
      HasSubstr(R"(layer_types = "linear_attention" is not supported; supported: "full_att)"));
  EXPECT_THAT(RefusalOf(With(Qwen3(), "layer_types", "full_attention")), HasSubstr("a list"));
  EXPECT_THAT(RefusalOf(With(Qwen3(), "num_experts", 128)), HasSubstr("num_experts = 128"));
}

}  // namespace
}  // namespace lockstep
