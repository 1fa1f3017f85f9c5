// What config.json says of a quantized checkpoint.
#include "model/stored_quantization.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/model_config.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string ConfigError(const std::string& quantization) {
  const auto config = ParseModelConfig(
      absl::StrCat(R"({"model_type":"llama","hidden_size":64,"intermediate_size":64,
      "num_hidden_layers":1,"num_attention_heads":8,"vocab_size":6,"quantization_config":)",
                   quantization, "}"));
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(StoredQuantizationTest, WhatIsNotReadIsRefusedByName) {
  EXPECT_THAT(ConfigError(R"({"quant_method":"gptq","bits":3,"group_size":128})"),
              HasSubstr("quantization_config.bits = 3"));
  EXPECT_THAT(ConfigError(R"({"quant_method":"gptq","bits":4,"group_size":0})"),
              HasSubstr("quantization_config.group_size = 0"));
  EXPECT_THAT(ConfigError(R"({"quant_method":"gptq","bits":4,"group_size":18446744073709551615})"),
              HasSubstr("quantization_config.group_size = 18446744073709551615"));
  EXPECT_THAT(ConfigError(R"({"quant_method":"gptq","bits":4,"group_size":32,"lm_head":true})"),
              HasSubstr("quantization_config.lm_head = true"));
  EXPECT_THAT(ConfigError(R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"})"),
              HasSubstr("quantization_config.version = \"gemv\""));
  EXPECT_THAT(ConfigError(R"({"quant_method":"compressed-tensors","format":"marlin-24",
      "config_groups":{"g":{"weights":{"num_bits":4,"type":"int"}}}})"),
              HasSubstr("quantization_config.format = \"marlin-24\""));
  EXPECT_THAT(ConfigError(R"({"quant_method":"compressed-tensors","format":"pack-quantized",
      "config_groups":{"g":{"weights":{"num_bits":4,"type":"int","symmetric":false}}}})"),
              HasSubstr("config_groups.g.weights.symmetric = false"));
  EXPECT_THAT(ConfigError("3"), HasSubstr("quantization_config.quant_method = 3"));
}

std::string Gptq(const std::string& more) {
  return absl::StrCat(R"({"quant_method":"gptq","bits":4,"group_size":32)", more, "}");
}

TEST(StoredQuantizationTest, GptqFormatsGoByEitherName) {
  const auto zero_offset = [](const std::string& more) {
    const auto stored = ParseStoredQuantization(nlohmann::json::parse(Gptq(more)), 1);
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? stored->zero_offset : -1;
  };
  EXPECT_EQ(zero_offset(""), 1);
  EXPECT_EQ(zero_offset(R"(,"is_marlin_format":false)"), 1);
  for (const char* name : {"format", "checkpoint_format"}) {
    EXPECT_EQ(zero_offset(absl::StrCat(",\"", name, "\":\"gptq\"")), 1) << name;
    EXPECT_EQ(zero_offset(absl::StrCat(",\"", name, "\":\"gptq_v2\"")), 0) << name;
    EXPECT_EQ(zero_offset(absl::StrCat(",\"", name, "\":null")), 1) << name;
    EXPECT_THAT(ConfigError(Gptq(absl::StrCat(",\"", name, "\":\"marlin\""))),
                HasSubstr(absl::StrCat("quantization_config.", name, " = \"marlin\"")));
  }
  EXPECT_EQ(zero_offset(R"(,"format":"gptq_v2","checkpoint_format":"gptq_v2")"), 0);
  EXPECT_THAT(ConfigError(Gptq(R"(,"format":"gptq_v2","checkpoint_format":"gptq")")),
              AllOf(HasSubstr("quantization_config.format = \"gptq_v2\""),
                    HasSubstr("checkpoint_format says, \"gptq\"")));
  EXPECT_THAT(ConfigError(Gptq(R"(,"is_marlin_format":true)")),
              HasSubstr("quantization_config.is_marlin_format = true"));
}

// Our format with a transform to be applied there.
nlohmann::json Transformed(const char* location) {
  nlohmann::json config = PackedQuantizationJson(Quantization::kInt8);
  config["transform_config"]["config_groups"]["R4"] = {
      {"type", "hadamard"},
      {"apply",
       {{{"targets", {"re:.*down_proj$"}}, {"location", "weight_input"}},
        {{"targets", {"re:.*down_proj$"}}, {"location", location}}}}};
  return config;
}

TEST(StoredQuantizationTest, TransformsAreRefusedUnlessWeightsHaveThem) {
  for (const char* location : {"input", "output", "q_attn", "k_cache", "elsewhere"}) {
    EXPECT_THAT(ConfigError(Transformed(location).dump()),
                HasSubstr(absl::StrCat("transform_config.config_groups.R4.apply.location = \"",
                                       location, "\" is not supported")));
  }
  for (const char* location : {"weight_input", "weight_output"}) {
    EXPECT_TRUE(ParseStoredQuantization(Transformed(location), 1).ok()) << location;
  }
  nlohmann::json config = PackedQuantizationJson(Quantization::kInt8);
  for (const char* nothing : {"null", "{}", R"({"config_groups":{}})"}) {
    config["transform_config"] = nlohmann::json::parse(nothing);
    EXPECT_TRUE(ParseStoredQuantization(config, 1).ok()) << nothing;
  }
}

// Llama 2 7B's: eighths of 11008 columns are whole groups of 32 but not of 64.
TEST(StoredQuantizationTest, WhatProductsCutWithinGroupsIsSaid) {
  ModelConfig config;
  config.hidden_size = 4096;
  config.intermediate_size = 11008;
  config.num_heads = 32;
  config.head_dim = 128;
  const auto text = [&config](Quantization stored, Quantization quantize) {
    config.stored = *ParseStoredQuantization(PackedQuantizationJson(stored), 1);
    return config.LoadingText(quantize, 1);
  };
  EXPECT_THAT(text(Quantization::kInt4, Quantization::kNone), EndsWith(": taken as it is"));
  const std::string cut =
      ": taken as it is, but for down_proj (8 parts of 1376 columns are not whole groups), turned "
      "into numbers";
  EXPECT_THAT(text(Quantization::kInt8, Quantization::kNone), EndsWith(cut));
  EXPECT_THAT(text(Quantization::kInt8, Quantization::kInt8),
              EndsWith(cut + " and quantized again"));
  config.intermediate_size = 64;
  config.head_dim = 6;
  EXPECT_THAT(
      text(Quantization::kInt8, Quantization::kNone),
      HasSubstr("o_proj (8 parts of 24 columns are not whole groups) and down_proj (8 parts "
                "of 8 columns are not whole groups)"));
}

std::string Fbgemm(const std::string& bound) {
  return absl::StrCat(R"({"quant_method":"fbgemm_fp8","activation_scale_ub":)", bound, "}");
}

TEST(StoredQuantizationTest, ActivationsAreBoundedIfFbgemmSaysSo) {
  const std::vector<std::pair<std::string, float>> cases = {
      {Fbgemm("1200.0"), 1200.0f}, {Fbgemm("1"), 1.0f},
      {Fbgemm("3.4e38"), 3.4e38f}, {Fbgemm("1e-30"), 1e-30f},
      {Fbgemm("null"), INFINITY},  {R"({"quant_method":"fbgemm_fp8"})", INFINITY}};
  for (const auto& [text, bound] : cases) {
    const auto stored = ParseStoredQuantization(nlohmann::json::parse(text), 1);
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(stored->activation_bound, bound) << text;
  }
}

TEST(StoredQuantizationTest, BoundsThatBoundNothingAreRefused) {
  for (const char* bound :
       {"0", "-0.0", "-1200.0", "1e-31", "5e-324", "3.5e38", "1e300", "true", "\"12\"", "[1]"}) {
    EXPECT_THAT(ConfigError(Fbgemm(bound)),
                AllOf(HasSubstr("activation_scale_ub = "), HasSubstr("a number in [")));
  }
}

TEST(StoredQuantizationTest, Fp8ThatIsNotReadIsRefusedByName) {
  for (const char* blocks : {"[]", "[128]", "[128,0]", "[-1,128]", "[128,128,128]", "[128,\"128\"]",
                             "128", "[128,4194305]", "[1.5,128]"}) {
    EXPECT_THAT(
        ConfigError(absl::StrCat(R"({"quant_method":"fp8","weight_block_size":)", blocks, "}")),
        AllOf(HasSubstr(absl::StrCat("quantization_config.weight_block_size = ", blocks)),
              HasSubstr("supported: two integers in [1, 4194304]")));
  }
  EXPECT_THAT(ConfigError(R"({"quant_method":"fp8","fmt":"e5m2"})"),
              HasSubstr("quantization_config.fmt = \"e5m2\" is not supported"));
  EXPECT_THAT(ConfigError(R"({"quant_method":"modelopt","quant_algo":"NVFP4"})"),
              AllOf(HasSubstr("quantization_config.quant_algo = \"NVFP4\""),
                    HasSubstr("supported: \"FP8\", ")));
  EXPECT_THAT(ConfigError(R"({"quant_method":"modelopt","quantization":{}})"),
              HasSubstr("quantization_config.quant_algo = null"));
  EXPECT_THAT(ConfigError(R"({"quant_method":"fp8","ignored_layers":"lm_head"})"),
              HasSubstr("quantization_config.ignored_layers = \"lm_head\""));
  EXPECT_THAT(ConfigError(R"({"quant_method":"compressed-tensors","format":"float-quantized",
      "config_groups":{"g":{"weights":{"num_bits":8,"type":"float","strategy":"block"}}}})"),
              HasSubstr("config_groups.g.weights.block_structure = null"));
}

// Modules that are not converted, by the names that methods have for their list.
TEST(StoredQuantizationTest, Fp8SparesWhatItLists) {
  const std::string listed =
      R"(["lm_head","model.layers.1.self_attn","model.layers.0.mlp.up_proj"])";
  for (
      const char* quantization :
      {R"({"quant_method":"fp8","modules_to_not_convert":%s})",
       R"({"quant_method":"fp8","modules_to_not_convert":null,"ignored_layers":%s})",
       R"({"quant_method":"modelopt","quant_algo":"FP8","ignore":%s})",
       R"({"quant_method":"modelopt","quantization":{"quant_algo":"FP8","exclude_modules":%s}})"}) {
    std::string text = quantization;
    text.replace(text.find("%s"), 2, listed);
    const auto stored = ParseStoredQuantization(nlohmann::json::parse(text), 2);
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_TRUE(stored->is_float8());
    EXPECT_EQ(stored->spared.Of(0), SetOf({LayerMatrix::kUp})) << text;
    EXPECT_EQ(stored->spared.Of(1), kAttentionMatrices) << text;
  }
}

TEST(StoredQuantizationTest, BlocksBecomeNumbers) {
  ModelConfig config;
  config.stored = *ParseStoredQuantization(
      nlohmann::json::parse(R"({"quant_method":"fp8","weight_block_size":[128,64]})"), 1);
  EXPECT_FALSE(config.stored->is_float8());
  EXPECT_EQ(config.stored->native(), Quantization::kNone);
  EXPECT_EQ(config.LoadingText(Quantization::kNone, 1),
            "fp8, FP8 in blocks of 128 x 64: turned into numbers while loading");
  EXPECT_THAT(config.LoadingText(Quantization::kFp8, 1), EndsWith(", then quantized to fp8"));
}

TEST(StoredQuantizationTest, OurFormatReadsBack) {
  for (const Quantization q : {Quantization::kInt8, Quantization::kInt4}) {
    const auto stored = ParseStoredQuantization(nlohmann::json(PackedQuantizationJson(q)), 1);
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(stored->native(), q);
  }
}

}  // namespace
}  // namespace lockstep
